"""Scores of a checkpoint (EVAL-01, EVAL-07)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rufus_core.errors import DataError, InfrastructureError
from rufus_core.evaluation.play import play
from rufus_core.evaluation.scores import Scores
from rufus_core.evaluation.statistics import pass_at_1
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.jobs.document import InputArtifact
from rufus_core.jobs.problem_files import load_problems, save_problems
from rufus_core.jobs.run import run_job
from rufus_core.jobs.scores import played_stage
from rufus_core.lineage import Record, Store
from rufus_core.rewards.judges import judge_identity
from rufus_core.rollout.opening import PlayedPolicy
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.types import Episode, Problem, Verdict
from tests.jobs.miniature import Runner, small_recipe
from tests.jobs.solver import LONG_ENOUGH, OTHER, RIGHT, solver
from tests.sandbox.real import require_isolation
from tests.training import toy


@pytest.fixture(scope="module")
def learned(runner: Runner) -> Policy:
    return solver(runner.path("base"), RIGHT)


def _scored(
    runner: Runner,
    folder: Path,
    policy: Path,
    problems: list[Problem],
    candidate: int | None = None,
    **benchmark: object,
) -> Record:
    """The scores of a policy (or of a candidate in a training's folder) on these problems, as the only benchmark."""
    (folder / "problems").mkdir(exist_ok=True)
    save_problems(folder / "problems", "heldout", problems)
    step = Runner(folder, small_recipe(LONG_ENOUGH)).steps["scores/reasoning_rl"]
    settings = step.config["benchmarks"]["reasoning"] | benchmark
    play = {"reasoning_rl": step.config["play"]["reasoning_rl"]}
    paths = {"checkpoint": policy, "problems/reasoning_rl": folder / "problems"}
    for path in paths.values():  # a job asks that its inputs have records; it doesn't read them
        (path / "record.json").touch()
    return run_job(
        runner.document(
            "scores/base",
            name="scores/made_up",
            config={"benchmarks": {"reasoning": settings}, "play": play, "candidate_step": candidate},
            fingerprint=f"{candidate or 0}" * 64,
            inputs={
                role: InputArtifact(name=role, digest="1" * 64, record_id="x", path=path)
                for role, path in paths.items()
            },
            store=folder / "store",
        )
    )


def _file(folder: Path, record: Record) -> Scores:
    return Scores.load(Store(folder / "store").path(record) / "reasoning.json")


def test_the_metric_is_the_mean_over_problems(runner: Runner, tmp_path: Path, learned: Policy) -> None:
    learned.save(tmp_path / "policy")
    record = _scored(runner, tmp_path, tmp_path / "policy", [RIGHT, OTHER], samples_per_problem=4)
    scores = _file(tmp_path, record)
    assert {key: len(samples) for key, samples in scores.per_problem.items()} == {RIGHT.id: 4, OTHER.id: 4}
    assert record.metrics == {"reasoning": pass_at_1(scores.per_problem).mean}
    assert sum(filter(None, scores.per_problem[RIGHT.id])) >= 3
    assert sum(filter(None, scores.per_problem[OTHER.id])) == 0
    assert scores.digest == "1" * 64
    assert scores.protocol["settings"]["samples_per_problem"] == 4


def test_a_benchmark_without_problems_has_no_number(runner: Runner, tmp_path: Path) -> None:
    """And no 0 that would pass for one."""
    record = _scored(runner, tmp_path, runner.path("base"), [])
    assert record.metrics == {}
    assert _file(tmp_path, record).per_problem == {}


def test_fewer_problems_than_are_held_out_mix_the_sources(runner: Runner, tmp_path: Path) -> None:
    heldout = load_problems(runner.path("data/reasoning_rl"), "heldout")
    assert len({problem.source for problem in heldout[:4]}) == 1  # in the file, source by source
    record = _scored(runner, tmp_path, runner.path("base"), heldout, num_problems=6, samples_per_problem=1)
    chosen = _file(tmp_path, record).per_problem
    assert len(chosen) == 6
    assert len({problem.source for problem in heldout if problem.id in chosen}) > 1


def test_a_benchmarks_own_budget_counts(runner: Runner, tmp_path: Path, learned: Policy) -> None:
    learned.save(tmp_path / "policy")
    record = _scored(runner, tmp_path, tmp_path / "policy", [RIGHT], response_budget_tokens=3)
    assert record.metrics == {"reasoning": 0.0}  # cut off before the answer


def test_a_candidate_is_played_with_its_own_weights(runner: Runner, tmp_path: Path, learned: Policy) -> None:
    """And its numbers name its step, for the digest is that of the whole training."""
    load_policy(runner.path("base")).save(tmp_path / "checkpoints" / "step-1")
    learned.save(tmp_path / "checkpoints" / "step-2")
    before, after = (_scored(runner, tmp_path, tmp_path, [RIGHT], step, samples_per_problem=4) for step in (1, 2))
    assert before.metrics["reasoning"] < 0.5 < after.metrics["reasoning"]
    assert (before.step, after.step) == (1, 2)
    assert [_file(tmp_path, record).step for record in (before, after)] == [1, 2]


def test_a_mixture_is_played_in_the_environments_of_all_stages(runner: Runner) -> None:
    require_isolation()
    record = runner.run("scores/base")
    scores = Scores.load(runner.path("scores/base") / "mixture.json")
    families = {p.id: p.family for p in load_problems(runner.path("data/sft"), "heldout")}
    assert {families[key] for key in scores.per_problem} >= {"terminal", "chat"}
    assert all(None not in samples for samples in scores.per_problem.values())
    assert record.metrics.keys() == {"mixture"}
    assert runner.run("scores/base").inputs["checkpoint"].digest == runner.run("base").digest


# Playing


def _play(policy: Policy, gym: SingleTurnGym, **changes: object) -> dict[str, tuple[float | None, ...]]:
    settings = {"samples": 3, "temperature": 1.0, "seed": 1, "workers": 1} | changes
    return play(PlayedPolicy.embedded(policy), gym, {"toy": toy.rl_stage()}, toy.PROBLEMS, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def spoken() -> Policy:
    return toy.speaking_policy()


def test_a_lost_sample_is_none_and_not_zero(spoken: Policy) -> None:
    def verify(episode: Episode) -> Verdict:
        if episode.problem == toy.PROBLEMS[0]:
            raise InfrastructureError("the verifier is gone")
        if episode.problem == toy.PROBLEMS[1]:
            return Verdict.unscorable("the reference is broken")
        return Verdict.binary(episode.problem == toy.PROBLEMS[2])

    results = _play(spoken, SingleTurnGym(verify))
    assert [results[problem.id] for problem in toy.PROBLEMS] == [(None,) * 3, (None,) * 3, (1.0,) * 3, (0.0,) * 3]


def test_samples_are_paired_by_the_seed(spoken: Policy) -> None:
    """Two plays with one seed draw the same, whatever else is played; another seed draws otherwise."""
    heard: list[str | None] = []

    def verify(episode: Episode) -> Verdict:
        heard.append(episode.final_text)
        return Verdict.binary(True)

    for seed in (1, 1, 2):
        _play(spoken, SingleTurnGym(verify), seed=seed, samples=8)
    assert heard[:32] == heard[32:64] != heard[64:]


def test_a_family_without_a_stage_is_refused(spoken: Policy) -> None:
    with pytest.raises(DataError, match="family 'toy'"):
        play(PlayedPolicy.embedded(spoken), toy.colour_gym(), {}, toy.PROBLEMS, samples=1, temperature=1.0, seed=0)


def test_the_protocol_holds_no_title(runner: Runner) -> None:
    """Titles are for tables; two numbers may be compared whatever they are called."""
    renamed = Runner(runner.store.root.parent, small_recipe("benchmarks.reasoning.title=Thinking"))
    assert json.dumps(renamed.steps["scores/sft"].config) == json.dumps(runner.steps["scores/sft"].config)


def test_who_judges_is_in_the_protocol_and_is_asked_by_the_recipe_s_name(tmp_path: Path) -> None:
    play = Runner(tmp_path, small_recipe("stages.if_rl.models={judge: qwen}")).steps["scores/if_rl"].config["play"]
    assert play["if_rl"]["judges"] == {"qwen": judge_identity("qwen")}
    assert played_stage(play["if_rl"]).models.judge == "qwen"


def test_a_policy_is_loaded_as_it_was_saved(runner: Runner) -> None:
    assert load_policy(runner.path("base")).context_length == 1024
