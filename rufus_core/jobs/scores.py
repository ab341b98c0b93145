"""Scores of one checkpoint: its stage's targets and guardrails, and what its child will be compared on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from rufus_core.evaluation.play import play
from rufus_core.evaluation.scores import Scores
from rufus_core.evaluation.statistics import pass_at_1
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.problem_files import load_problems
from rufus_core.lineage.names import step_folder
from rufus_core.rewards.judges import JUDGES
from rufus_core.rollout.opening import open_policy
from rufus_core.settings import BenchmarkSettings, RLStage
from rufus_core.stages import STAGE_OF_FAMILY, open_mixed_gym
from rufus_core.types import Json, Problem


def score_checkpoint(job: Job) -> Outcome:
    checkpoint = job.document.inputs["checkpoint"]
    candidate = job.document.config.get("candidate_step")  # of a training; None: the checkpoint is an artifact itself
    policy = checkpoint.path if candidate is None else checkpoint.path / step_folder(candidate)
    benchmarks = {name: BenchmarkSettings.model_validate(b) for name, b in job.document.config["benchmarks"].items()}
    metrics: dict[str, float] = {}
    with job.report(len(benchmarks)) as report:
        for count, (name, benchmark) in enumerate(benchmarks.items(), start=1):
            problems = _sample(
                load_problems(job.input(f"problems/{benchmark.stage}"), "heldout"), benchmark.num_problems
            )
            per_problem = play_problems(
                job,
                policy,
                problems,
                samples=benchmark.samples_per_problem,
                temperature=benchmark.temperature,
                response_budget=benchmark.response_budget_tokens,
            )
            scores = Scores(
                benchmark=name,
                stage=job.document.stage or "base",
                checkpoint=checkpoint.name,
                digest=checkpoint.digest,
                step=candidate,
                protocol=_protocol(job, name, benchmark),
                per_problem=per_problem,
            )
            scores.save(job.output / f"{name}.json")
            mean = pass_at_1(per_problem).mean
            measured = {} if mean is None else {name: mean}
            metrics |= measured
            report.log(count, measured)
    return Outcome(metrics, step=candidate)


def _sample(problems: Sequence[Problem], count: int | None) -> list[Problem]:
    """The same problems for every checkpoint, of all sources: ids are hashes, so their order mixes the sources."""
    return sorted(problems, key=lambda problem: problem.id)[:count]


def _protocol(job: Job, name: str, benchmark: BenchmarkSettings) -> dict[str, Json]:
    """All that the number depends on beside the checkpoint (EVAL-07). A step may measure other benchmarks too."""
    play: dict[str, Json] = job.document.config["play"]
    assert benchmark.stage is not None
    mixed = benchmark.stage not in play  # SFT's mixture is played by every stage's rules
    return {
        "benchmark": name,
        "problems": job.document.inputs[f"problems/{benchmark.stage}"].digest,
        "settings": benchmark.model_dump(mode="json"),
        "play": play if mixed else play[benchmark.stage],
        "seed": job.document.seed,
    }


def play_problems(
    job: Job,
    policy_path: Path,
    problems: Sequence[Problem],
    *,
    samples: int,
    temperature: float = 1.0,
    response_budget: int | None = None,
) -> dict[str, tuple[float | None, ...]]:
    """1 or 0 for each sample of each problem; None where the infrastructure failed. By default a stage's own budget."""
    job.use_threads()
    settings = {name: played_stage(stage) for name, stage in job.document.config["play"].items()}
    with (
        open_policy(job.execution, policy_path) as policy,
        open_mixed_gym(settings, job.execution, job.document.name) as gym,
    ):
        by_family = {family: settings[stage] for family, stage in STAGE_OF_FAMILY.items() if stage in settings}
        return play(
            policy,
            gym,
            by_family,
            problems,
            samples=samples,
            temperature=temperature,
            response_budget=response_budget,
            seed=job.document.seed,
            workers=job.execution.rollout_workers,
        )


def played_stage(config: dict[str, Json]) -> RLStage:
    """A stage's settings as far as playing its problems depends on them; the rest is filled in neutrally."""
    neutral = {
        "kind": "rl",
        "title": "",
        "parent": "",
        "optimizer": {"lr_peak": 1.0},
        "run": {"steps": 1, "select": {"rule": "last"}},
        "evaluation": {"targets": []},
        "problems": {"sources": {}},
        "algorithm": {"name": "grpo", "clip_low": 1.0, "clip_high": 1.0},
    }
    rollout = {"prompts_per_rollout": 1, "samples_per_prompt": 1, **config["rollout"]}
    given = {name: value for name, value in config.items() if name != JUDGES}  # they are identity, and no setting
    return TypeAdapter(RLStage).validate_python({**neutral, **given, "rollout": rollout})
