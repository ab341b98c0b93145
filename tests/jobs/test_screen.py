"""Screens of a stage's problems by the policy it starts from (PIPE-10, RRL-D5, CRL-D7)."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rufus_core.errors import ConfigError, DataError, Preempted
from rufus_core.evaluation.screening import Attempts, Screened
from rufus_core.jobs.attempt_log import AttemptLog
from rufus_core.jobs.document import InputArtifact, JobDocument
from rufus_core.jobs.problem_files import load_problems, save_problems
from rufus_core.jobs.run import run_job
from rufus_core.lineage import Record, Store
from rufus_core.lineage.diff import diff
from rufus_core.lineage.impact import impact
from rufus_core.recipe.graph import build_graph
from rufus_core.rollout.chat_sampler import ChatSampler
from rufus_core.types import Json, Message, Problem
from tests.jobs.miniature import Runner, small_recipe
from tests.jobs.solver import LONG_ENOUGH, OTHER, RIGHT, solver
from tests.jobs.test_resume import Training
from tests.rollout.server.process import ServerProcess

SCREEN = "screens/reasoning_rl/learnability"
FILTER = "stages.reasoning_rl.problems.filters={learnability: {samplers: [policy], num_attempts: 2, %s}}"
WIDE = FILTER % "high_inclusive: 1.0"


@pytest.fixture(scope="module")
def inputs(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A policy that solves RIGHT and not OTHER, and these two problems."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "problems").mkdir()
    solver(runner.path("base"), RIGHT).save(folder / "policy")
    save_problems(folder / "problems", "train", [RIGHT, OTHER])
    paths = {"policy": folder / "policy", "problems": folder / "problems"}
    for path in paths.values():  # a job asks that its inputs have records; it doesn't read them
        (path / "record.json").touch()
    return paths


def _document(runner: Runner, folder: Path, inputs: dict[str, Path], **settings: Json) -> JobDocument:
    step = Runner(folder, small_recipe(LONG_ENOUGH, WIDE)).steps[SCREEN]
    return runner.document("scores/base").model_copy(
        update={
            "name": SCREEN,
            "kind": "screen",
            "config": step.config | {"filter": {"samplers": ["policy"], "num_attempts": 4, **settings}},
            "fingerprint": "1" * 64,
            "seed": 3,
            "inputs": {
                role: InputArtifact(name=role, digest="1" * 64, record_id="x", path=path)
                for role, path in inputs.items()
            },
            "store": folder / "store",
            "progress": folder / "progress.jsonl",
        }
    )


def _screened(runner: Runner, folder: Path, inputs: dict[str, Path], **settings: Json) -> tuple[Record, Path]:
    record = run_job(_document(runner, folder, inputs, **settings))
    return record, Store(folder / "store").path(record)


def _rows(folder: Path) -> list[Screened]:
    return [Screened.model_validate_json(line) for line in (folder / "screen.jsonl").read_text().splitlines()]


def test_what_the_policy_can_solve_already_is_dropped(runner: Runner, tmp_path: Path, inputs: dict[str, Path]) -> None:
    record, folder = _screened(runner, tmp_path, inputs, high_exclusive=0.5)
    assert load_problems(folder, "train") == [OTHER]
    right, other = _rows(folder)
    assert (right.id, right.verdict, right.attempts["policy"].num_scored) == (RIGHT.id, "too_easy", 4)
    assert right.attempts["policy"].num_passed >= 3
    assert (other.id, other.family, other.source, other.verdict) == (OTHER.id, "arithmetic", OTHER.source, "kept")
    assert other.attempts == {"policy": Attempts(num_scored=4)}
    assert record.metrics == {"problems": 2.0, "kept": 1.0, "too_easy": 1.0}


def test_the_artifact_says_who_screened_how_and_with_what_outcome(
    runner: Runner, tmp_path: Path, inputs: dict[str, Path]
) -> None:
    _, folder = _screened(runner, tmp_path, inputs, low_exclusive=0.0, high_inclusive=1.0)
    report = json.loads((folder / "report.json").read_text())
    passed = _rows(folder)[0].attempts["policy"].num_passed
    assert report == {
        "screen": SCREEN,
        "samplers": {"policy": {"name": "policy", "digest": "1" * 64}},
        "num_attempts": 4,
        "window": "0 < p <= 1",
        "temperature": 1.0,
        "seed": 3,
        "counts": {
            "problems": 2,
            "kept": 1,
            "too_hard": 1,
            "attempts_scored": 8,
            "attempts_passed": passed,
            "attempts_aborted": 0,
            "attempts_unscorable": 0,
        },
        "by_source": {RIGHT.source: {"kept": 1, "too_hard": 1}},
    }


def test_what_it_never_solves_is_dropped(runner: Runner, tmp_path: Path, inputs: dict[str, Path]) -> None:
    _, folder = _screened(runner, tmp_path, inputs, low_exclusive=0.0)
    assert load_problems(folder, "train") == [RIGHT]


def test_a_problem_that_cant_be_scored_leaves_before_p_and_is_counted(
    runner: Runner, tmp_path: Path, inputs: dict[str, Path]
) -> None:
    long = Problem.build("arithmetic", "mine", [Message(role="user", content="and " * 2000)], {"answer": "3"})
    (tmp_path / "problems").mkdir()
    save_problems(tmp_path / "problems", "train", [RIGHT, long])
    (tmp_path / "problems" / "record.json").touch()
    _, folder = _screened(runner, tmp_path, {**inputs, "problems": tmp_path / "problems"}, low_exclusive=0.0)
    assert load_problems(folder, "train") == [RIGHT]
    row = _rows(folder)[1]
    assert (row.verdict, row.rate) == ("unscored", None)
    assert (row.attempts["policy"].num_scored, row.attempts["policy"].num_unscorable) == (0, 4)
    assert "leaves no room" in row.attempts["policy"].lost_to[0]
    assert json.loads((folder / "report.json").read_text())["counts"]["attempts_unscorable"] == 4


def test_a_screen_that_leaves_nothing_says_so(runner: Runner, tmp_path: Path, inputs: dict[str, Path]) -> None:
    with pytest.raises(DataError, match="no problem of 2 is left: 1 too_easy, 1 too_hard") as caught:
        _screened(runner, tmp_path, inputs, low_exclusive=0.0, high_exclusive=0.5)
    assert caught.value.where == SCREEN


# It goes on where it was


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_screen_goes_on_bit_for_bit_and_plays_nothing_twice(
    runner: Runner, tmp_path: Path, number: int
) -> None:
    screen = Runner(runner.store.root.parent, small_recipe(WIDE)).document(SCREEN)
    whole, broken = (
        Training(screen.model_copy(update={"progress": tmp_path / name / "progress.jsonl"}), tmp_path / name)
        for name in ("whole", "broken")
    )
    assert whole.life() == 0
    assert broken.life(at_step=5, number=number) == (-9 if number == signal.SIGKILL else Preempted.exit_code)
    played = (broken.state / "attempts.jsonl").read_text().splitlines()
    assert len(played) == 5
    assert broken.life() == 0
    assert [step for step, _ in broken.told()] == list(range(6, 13))
    assert broken.bytes() == whole.bytes()
    assert (broken.state / "attempts.jsonl").read_text().splitlines()[:5] == played


def test_a_line_that_was_cut_off_is_played_again(tmp_path: Path) -> None:
    one = Attempts(num_passed=1, num_scored=2)
    with AttemptLog(tmp_path) as log:
        log.add("policy", "a", one)
        log.add("policy", "b", one)
    file = tmp_path / "attempts.jsonl"
    file.write_bytes(file.read_bytes()[:-3])
    with AttemptLog(tmp_path) as log:
        assert (log.of("a", ["policy"]), log.of("b", ["policy"])) == ({"policy": one}, {})
        log.add("policy", "b", one)
    with AttemptLog(tmp_path) as log:
        assert log.of("b", ["policy", "other"]) == {"policy": one}


# A teacher behind an endpoint


@pytest.fixture(scope="module")
def teacher(inputs: dict[str, Path]) -> Iterator[ServerProcess]:
    """The policy that solves RIGHT, behind a server of its own."""
    with ServerProcess(inputs["policy"]) as process:
        yield process


def test_a_teacher_behind_an_endpoint_screens_for_solvability_RRL_D4_CRL_D6(
    runner: Runner, tmp_path: Path, inputs: dict[str, Path], teacher: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUFUS_TEACHER_URL", f"{teacher.url}/v1")
    name = "openai:policy"
    _, folder = _screened(runner, tmp_path, {"problems": inputs["problems"]}, samplers=[name], low_exclusive=0.0)
    assert load_problems(folder, "train") == [RIGHT]
    right, other = _rows(folder)
    assert (right.attempts[name].num_scored, other.verdict) == (4, "too_hard")
    assert json.loads((folder / "report.json").read_text())["samplers"] == {name: {}}


def test_what_one_of_several_samplers_solves_stays(
    runner: Runner, tmp_path: Path, inputs: dict[str, Path], teacher: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy solves nothing, the teacher one problem: GA's correctness filter in small."""
    monkeypatch.setenv("RUFUS_TEACHER_URL", f"{teacher.url}/v1")
    untaught = {**inputs, "policy": runner.path("base")}
    _, folder = _screened(runner, tmp_path, untaught, samplers=["policy", "openai:policy"], low_exclusive=0.0)
    right, _ = _rows(folder)
    assert (right.attempts["policy"].num_passed, right.verdict) == (0, "kept")
    assert right.rate == right.attempts["openai:policy"].rate


def test_a_teacher_that_doesnt_answer_makes_no_zeros(
    runner: Runner, tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nothing listens there
        monkeypatch.setenv("RUFUS_TEACHER_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
        monkeypatch.setattr("rufus_core.jobs.samplers.ChatSampler", partial(ChatSampler, sleep=lambda _: None))
        with pytest.raises(DataError, match=r"no problem of 2 is left: 2 unscored; .*gave no reply"):
            _screened(runner, tmp_path, {"problems": inputs["problems"]}, samplers=["openai:big"], low_exclusive=0.0)


def test_a_teacher_without_an_address_is_asked_for(
    runner: Runner, tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUFUS_TEACHER_URL", raising=False)
    with pytest.raises(ConfigError, match="RUFUS_TEACHER_URL"):
        _screened(runner, tmp_path, {"problems": inputs["problems"]}, samplers=["openai:big"], low_exclusive=0.0)


def test_the_lineage_leads_from_the_parent_to_the_problems_to_the_training(home: Path, runner: Runner) -> None:
    screened = Runner(home, small_recipe(WIDE))
    training = screened.run("stages/reasoning_rl/train")
    screen, parent = screened.run(SCREEN), screened.run("stages/sft/checkpoint")
    assert training.inputs["problems"].record_id == screen.id
    assert screen.inputs["policy"].record_id == parent.id
    assert screen.inputs["problems"].record_id == screened.run("data/reasoning_rl").id
    touched = {each.id for each in impact(screened.store, "data/reasoning_rl").touched}
    assert {screen.id, training.id} <= touched
    unscreened = runner.run("stages/reasoning_rl/train")
    refs = (screened.store.resolve(record.id) for record in (unscreened, training))
    pairs = {pair.role: pair for pair in diff(screened.store, *refs).pairs}
    assert (pairs["problems"].old, pairs["problems"].new) == (unscreened.inputs["problems"].record_id, screen.id)
    assert pairs["problems"].rows is not None


def test_screens_apply_in_their_order_and_selection_and_scores_see_all_problems() -> None:
    two = (
        "stages.reasoning_rl.problems.filters={a: {samplers: [policy], num_attempts: 1}, "
        "b: {samplers: [policy], num_attempts: 2}}"
    )
    steps = {step.name: step for step in build_graph(small_recipe(two))}
    assert steps["screens/reasoning_rl/a"].inputs == {
        "problems": "data/reasoning_rl",
        "policy": "stages/sft/checkpoint",
    }
    assert steps["screens/reasoning_rl/b"].inputs["problems"] == "screens/reasoning_rl/a"
    assert steps["stages/reasoning_rl/train"].inputs["problems"] == "screens/reasoning_rl/b"
    assert steps["scores/reasoning_rl"].inputs["problems/reasoning_rl"] == "data/reasoning_rl"


@pytest.mark.parametrize(
    ("unable", "said"),
    [
        ("deduplicate: {}", "did you mean 'deduplication'"),
        ("sanity: {options: {max_refusal_share: 0.05}}", "doesn't run the filters sanity"),
        ("contamination: {}", "needs benchmarks"),
        ("deduplication: {options: {key: statement}}", "has no option 'key'"),
        ("correctness: {samplers: [GPT-OSS-120B], num_attempts: 8}", "openai:GPT-OSS-120B"),
        ("closed_book: {samplers: [policy], num_attempts: 8, tools: false}", "doesn't run the filters closed_book"),
    ],
)
def test_other_filters_are_refused_before_anything_runs(unable: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_graph(small_recipe(f"stages.reasoning_rl.problems.filters={{{unable}}}"))
    assert said in str(caught.value)
    assert "stages.reasoning_rl.problems.filters" in (caught.value.where or "")


EASY, TEACHER = "easy: {samplers: [policy], num_attempts: 8}", "taught: {samplers: ['openai:t'], num_attempts: 4}"


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("deduplication: {}, schema: {}", "schema comes after the filter deduplication"),
        ("policy_issues: {options: {phrases: [x]}}, deduplication: {}", "deduplication comes after the filter policy"),
        (f"{EASY}, schema: {{}}", "schema comes after the screen easy"),
        (f"schema: {{}}, {TEACHER}, deduplication: {{}}", "deduplication comes after the screen taught"),
        (f"schema: {{}}, {EASY}, {TEACHER}", "taught comes after the screen easy"),
    ],
)
@pytest.mark.parametrize("stage", ["reasoning_rl", "coding_rl", "if_rl"])
def test_filters_in_another_order_than_the_rule_s_are_refused_RRL_D5_CRL_D8_IF_D6(
    stage: str, order: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build_graph(small_recipe(f"stages.{stage}.problems.filters={{{order}}}"))
    assert said in str(caught.value)
    assert "put it before" in (caught.value.hint or "")
    assert (caught.value.where or "").startswith(f"stages.{stage}.problems.filters.")


def test_the_rule_s_order_of_filters_makes_a_chain_of_steps_CRL_D8_IF_D6() -> None:
    order = f"schema: {{}}, deduplication: {{}}, policy_issues: {{options: {{phrases: [x]}}}}, {TEACHER}, {EASY}"
    for stage in ("reasoning_rl", "coding_rl", "if_rl"):
        steps = {each.name: each for each in build_graph(small_recipe(f"stages.{stage}.problems.filters={{{order}}}"))}
        data, taught, easy = f"data/{stage}", f"screens/{stage}/taught", f"screens/{stage}/easy"
        assert steps[data].config["filter_order"] == ["schema", "deduplication", "policy_issues"]
        assert [steps[name].inputs["problems"] for name in (taught, easy, f"stages/{stage}/train")] == [
            data,
            taught,
            easy,
        ]


def test_a_teacher_plays_no_problems_with_tools() -> None:
    correctness = "{correctness: {samplers: [policy, 'openai:big'], num_attempts: 8}}"
    with pytest.raises(ConfigError, match="can't play problems with tools"):
        build_graph(small_recipe(f"stages.general_agent.problems.filters={correctness}"))


def test_a_teacher_s_screen_needs_no_checkpoint_of_ours() -> None:
    two = (
        "{correctness: {samplers: ['openai:big'], num_attempts: 4, low_exclusive: 0.0}, "
        "easy: {samplers: [policy], num_attempts: 4, high_inclusive: 0.8}}"
    )
    steps = {step.name: step for step in build_graph(small_recipe(f"stages.coding_rl.problems.filters={two}"))}
    assert steps["screens/coding_rl/correctness"].inputs == {"problems": "data/coding_rl"}
    assert steps["screens/coding_rl/easy"].inputs["policy"] == "stages/reasoning_rl/checkpoint"


def test_the_window_of_a_screen_is_no_part_of_the_data_s_identity() -> None:
    one, other = (
        build_graph(small_recipe(FILTER % window)) for window in ("high_inclusive: 1.0", "low_exclusive: 0.0")
    )
    data = [next(step for step in graph if step.name == "data/reasoning_rl") for graph in (one, other)]
    assert data[0].config == data[1].config
