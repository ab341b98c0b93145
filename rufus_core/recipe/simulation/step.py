"""A synchronous RL step: weights to the engines, rollout, training; and what every GPU did meanwhile."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from rufus_core.recipe.simulation.rollout import Rollout, RolloutModel, RolloutResult

SLOWEST = 0.1  # the share of a round's episodes whose time is told apart


@dataclass(frozen=True, slots=True)
class TrainerModel:
    """`flops_per_token` are those of all passes that a step makes over a trained token."""

    flops_per_token: float
    flops_per_second: float  # of all GPUs that train, as far as they are reached
    update_seconds: float  # from the end of training to engines that serve the new weights


@dataclass(frozen=True, slots=True)
class StepModel:
    """Colocated: the same GPUs roll out and train, in turns. Apart: `train_gpus` more of them train."""

    rollout: RolloutModel
    trainer: TrainerModel
    gpus_per_engine: int
    train_gpus: int  # 0 where colocated

    @property
    def num_gpus(self) -> int:
        return self.rollout.num_engines * self.gpus_per_engine + self.train_gpus


@dataclass(frozen=True, slots=True)
class GpuTime:
    """GPU-seconds of one step; they add up to all GPUs times the step.

    An engine that has nothing to run is in a `gap` if it has again in this round, for tools of its episodes run, and in
    a `tail` if it hasn't.
    `other_side` is the wait of GPUs that only train for the rollout, and of those that only roll out for the training.
    """

    decode: float
    prefill: float
    gap: float
    tail: float
    down: float
    update: float
    train: float
    other_side: float

    def kinds(self) -> dict[str, float]:
        return asdict(self)

    @property
    def idle(self) -> float:
        return self.gap + self.tail + self.down + self.other_side

    @property
    def total(self) -> float:
        return sum(self.kinds().values())


@dataclass(frozen=True, slots=True)
class StepResult:
    """`slowest_seconds`: of the rollout, with no more than a tenth of a round's episodes left."""

    num_gpus: int
    train_gpus: int  # of them, that only train
    update_seconds: float
    rollout_seconds: float
    slowest_seconds: float
    train_seconds: float
    trained_tokens: int  # of trajectories, prompts included
    gpu_time: GpuTime
    rollout: RolloutResult

    @property
    def seconds(self) -> float:
        return self.update_seconds + self.rollout_seconds + self.train_seconds


def simulate_step(model: StepModel) -> StepResult:
    """Play one step. Equal models give equal results."""
    result = Rollout(model.rollout).run()
    trained_tokens = sum(episode.num_tokens for episode in result.trained)
    train_seconds = trained_tokens * model.trainer.flops_per_token / model.trainer.flops_per_second
    return StepResult(
        num_gpus=model.num_gpus,
        train_gpus=model.train_gpus,
        update_seconds=model.trainer.update_seconds,
        rollout_seconds=result.seconds,
        slowest_seconds=_slowest_seconds(result, model.rollout.group_size),
        train_seconds=train_seconds,
        trained_tokens=trained_tokens,
        gpu_time=_gpu_time(model, result, train_seconds),
        rollout=result,
    )


def _slowest_seconds(result: RolloutResult, group_size: int) -> float:
    seconds, begun = 0.0, 0
    for each in result.rounds:
        issued = each.issued_groups * group_size
        ends = sorted(times.end for times in result.episodes[begun : begun + issued])
        seconds += each.end - ends[math.ceil(issued * (1 - SLOWEST)) - 1]
        begun += issued
    return seconds


def _gpu_time(model: StepModel, result: RolloutResult, train_seconds: float) -> GpuTime:
    spent = dict.fromkeys(("decode", "prefill", "gap", "tail", "down"), 0.0)
    for engine, outages in zip(result.engines, result.outages, strict=True):
        for each in result.rounds:
            worked = [s for s in engine.segments if each.start <= s.start < each.end]
            down = [(max(a, each.start), min(b, each.end)) for a, b in outages if a < each.end and b > each.start]
            last = max((s.end for s in worked), default=each.start)
            decode = sum(s.end - s.start for s in worked if not s.prefill)
            prefill = sum(s.end - s.start for s in worked if s.prefill)
            down_before = sum(min(b, last) - a for a, b in down if a < last)
            spent["decode"] += decode
            spent["prefill"] += prefill
            spent["gap"] += last - each.start - decode - prefill - down_before
            spent["down"] += sum(b - a for a, b in down)
            spent["tail"] += each.end - last - sum(b - max(a, last) for a, b in down if b > last)
    per_engine = model.gpus_per_engine
    rollout_gpus = model.rollout.num_engines * per_engine
    training = model.train_gpus or rollout_gpus
    waiting = model.train_gpus * result.seconds + (rollout_gpus * train_seconds if model.train_gpus else 0.0)
    return GpuTime(
        **{kind: seconds * per_engine for kind, seconds in spent.items()},
        update=model.num_gpus * model.trainer.update_seconds,
        train=training * train_seconds,
        other_side=waiting,
    )
