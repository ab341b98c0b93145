"""Scores of one checkpoint: its stage's targets and guardrails, and what its child will be compared on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from rufus_core.evaluation.play import play
from rufus_core.evaluation.scores import Scores
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.problem_files import load_problems
from rufus_core.rollout.policy import load_policy
from rufus_core.settings import BenchmarkSettings, RLStage
from rufus_core.stages import STAGE_OF_FAMILY, open_mixed_gym
from rufus_core.types import Json, Problem


def score_checkpoint(job: Job) -> Outcome:
    checkpoint = job.document.inputs["checkpoint"]
    benchmarks = {name: BenchmarkSettings.model_validate(b) for name, b in job.document.config["benchmarks"].items()}
    metrics: dict[str, float] = {}
    with job.report(len(benchmarks)) as report:
        for count, (name, benchmark) in enumerate(benchmarks.items(), start=1):
            problems = load_problems(job.input(f"problems/{benchmark.stage}"), "heldout")[: benchmark.num_problems]
            per_problem = play_heldout(
                job, checkpoint.path, problems, benchmark.samples_per_problem, benchmark.temperature
            )
            scores = Scores(
                benchmark=name,
                stage=job.document.stage or "base",
                checkpoint=checkpoint.name,
                digest=checkpoint.digest,
                protocol=_protocol(job, name, benchmark),
                per_problem=per_problem,
            )
            scores.save(job.output / f"{name}.json")
            known = [s for samples in per_problem.values() for s in samples if s is not None]
            metrics[name] = sum(known) / len(known) if known else 0.0
            report.log(count, {name: metrics[name]})
    return Outcome(metrics)


def _protocol(job: Job, name: str, benchmark: BenchmarkSettings) -> dict[str, Json]:
    """All that the number depends on beside the checkpoint (EVAL-07)."""
    return {
        "benchmark": name,
        "problems": job.document.inputs[f"problems/{benchmark.stage}"].digest,
        "settings": benchmark.model_dump(mode="json"),
        "play": job.document.config["play"],
        "seed": job.document.seed,
    }


def play_heldout(
    job: Job, policy_path: Path, problems: Sequence[Problem], samples: int, temperature: float
) -> dict[str, tuple[float | None, ...]]:
    """1 or 0 for each sample of each problem; None where the infrastructure failed."""
    job.use_threads()
    settings = {name: _played(stage) for name, stage in job.document.config["play"].items()}
    policy = load_policy(policy_path)
    execution = job.execution
    with open_mixed_gym(settings, execution.rollout_workers, execution.allow_unisolated_code) as gym:
        by_family = {family: settings[stage] for family, stage in STAGE_OF_FAMILY.items() if stage in settings}
        return play(
            policy, gym, by_family, problems, samples, temperature, job.document.seed, execution.rollout_workers
        )


def _played(config: dict[str, Json]) -> RLStage:
    """A stage's settings as far as playing its problems depends on them; the rest is filled in neutrally."""
    neutral = {
        "kind": "rl",
        "title": "",
        "parent": "",
        "optimizer": {"lr_peak": 0.0},
        "run": {"steps": 1, "select": {"rule": "last"}},
        "evaluation": {"targets": []},
        "problems": {"sources": {}},
        "algorithm": {"name": "grpo", "clip_low": 0.0, "clip_high": 0.0},
    }
    return TypeAdapter(RLStage).validate_python({**neutral, **config})
