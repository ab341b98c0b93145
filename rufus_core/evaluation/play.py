"""Playing held-out problems: the same loop, environments and budgets as in training, with evaluation limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rufus_core.errors import DataError
from rufus_core.gym.limits import limits_of
from rufus_core.gym.loop import EpisodeSpec, run_episodes
from rufus_core.ports.gym import Gym
from rufus_core.rollout.opening import PlayedPolicy
from rufus_core.settings import RLStage
from rufus_core.types import Problem

_EPISODES_AT_ONCE = 128  # each may hold a sandbox of its own


def play(
    policy: PlayedPolicy,
    gym: Gym,
    stage_by_family: Mapping[str, RLStage],
    problems: Sequence[Problem],
    *,
    samples: int,
    temperature: float,
    seed: int,
    response_budget: int | None = None,
    workers: int = 2,
) -> dict[str, tuple[float | None, ...]]:
    """Pass (1) or fail (0) of `samples` rollouts for each problem id; None where the infrastructure failed.

    The seed fixes every sample, so that two checkpoints are compared on the same draws. `response_budget` replaces
    the stages' own.

    Raises:
        DataError: no stage plays problems of this family.
    """
    results: dict[str, list[float | None]] = {problem.id: [] for problem in problems}
    by_family: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        by_family[problem.family].append(problem)
    for family, members in by_family.items():
        if family not in stage_by_family:
            raise DataError(f"no stage of this recipe plays problems of the family {family!r}")
        limits = limits_of(
            stage_by_family[family], policy.context_length, training=False, response_budget=response_budget
        )
        specs = [EpisodeSpec(problem, index, seed) for problem in members for index in range(samples)]
        limits = replace(limits, temperature=temperature, top_p=1.0)
        for start in range(0, len(specs), _EPISODES_AT_ONCE):
            some = specs[start : start + _EPISODES_AT_ONCE]
            for trajectory in run_episodes(policy.engine, policy.chat, gym, some, limits, workers=workers):
                verdict = trajectory.verdict
                results[trajectory.problem_id].append(float(verdict.passed) if verdict.counts else None)
    return {problem_id: tuple(samples) for problem_id, samples in results.items()}
