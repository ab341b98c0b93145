"""What a simulated step is told by: plain numbers for each count of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from rufus_core.recipe.simulation.step import StepResult
from rufus_core.types import Json


@dataclass(frozen=True, slots=True)
class Simulated:
    """One step on so many nodes."""

    nodes: int
    train_nodes: int
    result: StepResult


def as_json(simulated: Simulated) -> Json:
    """Seconds of the step's parts, shares of its GPU time that add up to 1, and counts of its rollout."""
    result = simulated.result
    rollout, time = result.rollout, result.gpu_time
    drawn = [each.episode for each in rollout.episodes]
    return {
        "nodes": simulated.nodes,
        "train_nodes": simulated.train_nodes,
        "gpus": result.num_gpus,
        "engines": len(rollout.engines),
        "seconds": {
            "step": result.seconds,
            "update": result.update_seconds,
            "rollout": result.rollout_seconds,
            "rollout_last_tenth": result.slowest_seconds,
            "train": result.train_seconds,
        },
        "gpu_hours": time.total / 3600,
        "gpu_time": {kind: seconds / time.total for kind, seconds in time.kinds().items()},
        "rounds": [
            {"seconds": each.end - each.start, "issued_groups": each.issued_groups, "kept_groups": each.kept_groups}
            for each in rollout.rounds
        ],
        "episodes": {
            "issued": len(drawn),
            "trained": len(rollout.trained),
            "truncated_share": sum(episode.truncated for episode in drawn) / len(drawn),
            "mean_tokens": sum(episode.num_tokens for episode in drawn) / len(drawn),
            "mean_sampled_tokens": sum(episode.sampled_tokens for episode in drawn) / len(drawn),
            "mean_turns": sum(len(episode.turns) for episode in drawn) / len(drawn),
        },
        "tokens": {
            "drawn": rollout.drawn_tokens,
            "lost": rollout.lost_tokens,
            "prefilled": sum(engine.prefilled for engine in rollout.engines),
            "trained": result.trained_tokens,
            "drawn_per_gpu_second": rollout.drawn_tokens / (result.rollout_seconds * _rollout_gpus(result)),
        },
        "retractions": sum(engine.retractions for engine in rollout.engines),
        "failures": rollout.num_failures,
    }


def _rollout_gpus(result: StepResult) -> int:
    return result.num_gpus - result.train_gpus
