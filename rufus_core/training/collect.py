"""Collecting one step's groups: sample prompts, roll out, keep what has something to teach, refill, shape, count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rufus_core.algorithms.advantages import group_advantages
from rufus_core.algorithms.sampling import in_window
from rufus_core.algorithms.shaping import shortest_correct_penalty
from rufus_core.data.mixture import EndlessOrder
from rufus_core.errors import DataError
from rufus_core.rewards.preference import over_length_penalty
from rufus_core.settings import AlgorithmSettings, DynamicSamplingSettings, LengthPenaltySettings
from rufus_core.types import Fate, Problem, Trajectory

Rollout = Callable[[Sequence[Problem]], list[list[Trajectory]]]

_MAX_ROUNDS = 3  # where no window says how often a short batch is refilled


class ProblemStream:
    """Problems without end: epoch after epoch, each in an order that depends on the seed and the epoch alone.

    The first `taken` of them were taken before.

    Raises:
        DataError: there is no problem.
    """

    def __init__(self, problems: Sequence[Problem], seed: int, taken: int = 0) -> None:
        if not problems:
            raise DataError("there is no problem to train on")
        self._problems, self._order = problems, EndlessOrder(len(problems), seed, taken)

    @property
    def taken(self) -> int:
        return self._order.taken

    def take(self, count: int) -> list[Problem]:
        return [self._problems[index] for index in self._order.take(count)]


@dataclass(slots=True)
class Issued:
    """A rollout of a step, and what became of it.

    `group` counts the step's groups in sampling order, from 0; `round` the rounds of refilling, from 1. `why` is empty
    where it is trained on.
    """

    trajectory: Trajectory
    group: int
    round: int
    fate: Fate
    why: str
    advantage: float | None = None  # of what is trained on


@dataclass(slots=True)
class Counts:
    """Conservation of rollouts: issued = trained + filtered + aborted. `short_groups` is what refilling left open."""

    issued: int = 0
    trained: int = 0
    filtered: int = 0
    aborted: int = 0
    rounds: int = 0
    short_groups: int = 0

    def check(self) -> None:
        if self.issued != self.trained + self.filtered + self.aborted:
            raise AssertionError(f"rollouts are not conserved: {self}")


def collect(
    stream: ProblemStream,
    rollout: Rollout,
    num_groups: int,
    window: DynamicSamplingSettings | None,
) -> tuple[list[list[Trajectory]], list[Issued], Counts]:
    """Groups to train on, everything that was issued in sampling order, and the counts.

    Aborted and unscorable members leave their group before anything is computed (CA-R3); a group left with fewer than
    two is dropped, and with a window also a whole group outside it. What was dropped is refilled with other problems,
    for a bounded number of rounds; what is short then is counted.
    """
    counts = Counts()
    kept: list[list[Trajectory]] = []
    issued: list[Issued] = []
    num_groups_issued = 0
    max_rounds = window.max_rounds if window else _MAX_ROUNDS
    factor = window.oversample_factor if window else 1.0
    while len(kept) < num_groups and counts.rounds < max_rounds:
        counts.rounds += 1
        problems = stream.take(math.ceil((num_groups - len(kept)) * factor))
        for group in rollout(problems):
            usable = [t for t in group if t.usable]
            # In sampling order: no favour for what finished first.
            why = _unwanted(usable, window) or ("" if len(kept) < num_groups else "enough groups")
            if not why:
                kept.append(usable)
            issued += [_issued(trajectory, num_groups_issued, counts.rounds, why) for trajectory in group]
            num_groups_issued += 1
    fates = Counter(one.fate for one in issued)
    counts.issued, counts.trained = len(issued), sum(map(len, kept))
    counts.filtered, counts.aborted = fates[Fate.FILTERED], fates[Fate.ABORTED]
    counts.short_groups = num_groups - len(kept)
    counts.check()
    return kept, issued, counts


def _issued(trajectory: Trajectory, group: int, round_: int, why: str) -> Issued:
    """`why` the group is dropped, if it is."""
    if not trajectory.usable:
        return Issued(trajectory, group, round_, Fate.ABORTED, trajectory.verdict.kind.value)
    return Issued(trajectory, group, round_, Fate.FILTERED if why else Fate.TRAINED, why)


def _unwanted(usable: Sequence[Trajectory], window: DynamicSamplingSettings | None) -> str:
    """Why a group has nothing to teach, by its usable members; empty if it has."""
    if len(usable) < 2:
        return "fewer than two usable"
    if window is not None and not in_window(float(np.mean([t.verdict.score for t in usable])), window):
        return "outside the window"
    return ""


def shape_rewards(
    groups: Sequence[Sequence[Trajectory]], penalty: LengthPenaltySettings | None, max_tokens: int
) -> None:
    """Set each trajectory's `reward` from its verdict's score and the stage's length penalty.

    That for the shortest correct one counts all that was sampled (RRL-R2), that for over-length the final response
    (RM-R2).
    """
    flat = [t for group in groups for t in group]
    deductions = np.zeros(len(flat))
    if penalty is not None and penalty.kind == "shortest_correct":
        deductions = shortest_correct_penalty(
            [t.episode.num_response_tokens for t in flat],
            [t.verdict.passed for t in flat],
            [t.truncated for t in flat],
            _group_ids(groups),
            max_tokens=max_tokens,
            cap=penalty.cap,
        )
    for trajectory, deduction in zip(flat, deductions, strict=True):
        score = trajectory.verdict.score
        if penalty is not None and penalty.kind == "over_length":
            length = trajectory.episode.num_final_tokens
            score = over_length_penalty(score, length, penalty.threshold_tokens, penalty.max_tokens)
        trajectory.reward = float(score - deduction)


def advantages_of(groups: Sequence[Sequence[Trajectory]], algorithm: AlgorithmSettings) -> list[float]:
    """One advantage for each trajectory, in order."""
    rewards = [t.reward for group in groups for t in group]
    advantages: list[float] = group_advantages(rewards, _group_ids(groups), algorithm.advantage).tolist()
    return advantages


def note_advantages(issued: Sequence[Issued], advantages: Sequence[float]) -> None:
    """Give each rollout that is trained on its advantage; these are in the order of the groups."""
    trained = [one for one in issued if one.fate is Fate.TRAINED]
    for one, advantage in zip(trained, advantages, strict=True):
        one.advantage = advantage


def _group_ids(groups: Sequence[Sequence[Trajectory]]) -> list[str]:
    """An id of its own for each group: a small set's problem may be sampled twice in a step."""
    return [f"{index}:{t.problem_id}" for index, group in enumerate(groups) for t in group]
