"""Training steps: one stage from its parent's weights. The artifact holds the candidates under `checkpoints/step-N`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from pydantic import TypeAdapter

from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.problem_files import load_examples, load_problems
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.settings import RLStage, SFTStage, StageSettings
from rufus_core.stages import STAGES
from rufus_core.stages.stage import GymContext
from rufus_core.training.reporter import Reporter
from rufus_core.training.rl import train_rl
from rufus_core.training.sft import train_sft
from rufus_core.types import Json, Trajectory

_ROLLOUTS_KEPT = 8  # trajectories of each step that are kept for reading


def train_stage(job: Job) -> Outcome:
    job.use_threads()
    stage = stage_settings(job)
    policy = load_policy(job.input("parent"))
    assert stage.run.steps is not None

    def save(step: int) -> None:
        policy.save(job.output / "checkpoints" / f"step-{step}")

    with Reporter(job.output / "metrics.jsonl", stage.run.steps) as kept, job.report(stage.run.steps) as shown:
        sink = _Both(kept, shown)
        if isinstance(stage, SFTStage):
            examples = load_examples(job.input("problems") / "examples.jsonl")
            ids = policy.chat.example_ids([(e.messages, e.supervise, e.tools) for e in examples])
            train_sft(policy, ids, stage, job.document.seed, sink, save)
        else:
            _train_rl(job, stage, policy, sink, save)
    return Outcome({k: v for k, v in sink.last.items() if not k.endswith("seconds")}, step=stage.run.steps)


def stage_settings(job: Job) -> SFTStage | RLStage:
    """The stage's settings as far as training depends on them; what it doesn't is filled in neutrally."""
    config = job.document.config
    rest = {"kind": config["kind"], "title": "", "parent": "parent", "evaluation": {"targets": []}}
    settings = dict(config["settings"])
    settings["run"] = {**settings["run"], "select": {"rule": "last"}}
    data: dict[str, Json] = {"data" if config["kind"] == "sft" else "problems": {"sources": {}}}
    adapter: TypeAdapter[SFTStage | RLStage] = TypeAdapter(StageSettings)
    return adapter.validate_python({**rest, **settings, **data})


def _train_rl(job: Job, stage: RLStage, policy: Policy, sink: _Both, save: Callable[[int], None]) -> None:
    assert job.document.stage is not None
    reward_model = job.input("reward_model") if "reward_model" in job.document.inputs else None
    context = GymContext(
        settings=stage,
        training=True,
        workers=job.execution.rollout_workers,
        allow_unisolated=job.execution.allow_unisolated_code,
        reward_model=reward_model,
    )
    problems = load_problems(job.input("problems"), "train")
    with (
        (job.output / "rollouts.jsonl").open("w", encoding="utf-8") as file,
        STAGES[job.document.stage].open_gym(context) as gym,
    ):

        def keep(step: int, trajectories: Sequence[Trajectory]) -> None:
            for trajectory in trajectories[:_ROLLOUTS_KEPT]:
                file.write(json.dumps(_readable(step, trajectory), ensure_ascii=False) + "\n")

        workers = job.execution.rollout_workers
        train_rl(policy, problems, gym, stage, job.document.seed, sink, save, keep, workers)


def _readable(step: int, trajectory: Trajectory) -> dict[str, object]:
    return {
        "step": step,
        "problem": trajectory.problem_id,
        "sample": trajectory.sample_index,
        "reward": trajectory.reward,
        "passed": trajectory.verdict.passed,
        "reason": trajectory.verdict.reason,
        "termination": trajectory.episode.termination,
        "weight_version": trajectory.weight_version,
        "messages": [m.model_dump(mode="json", exclude_defaults=True) for m in trajectory.episode.messages],
    }


class _Both:
    """Sends metrics to the artifact's own file, where they are part of its bytes, and to whoever watches.

    What the clock says stays out of the artifact: equal runs write equal bytes.
    """

    def __init__(self, kept: Reporter, shown: Reporter) -> None:
        self._kept, self._shown = kept, shown
        self.last: dict[str, float] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.last = dict(metrics)
        self._kept.log(step, {k: v for k, v in metrics.items() if not k.endswith("seconds")}, timed=False)
        self._shown.log(step, metrics)
