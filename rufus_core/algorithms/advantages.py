"""Group-relative advantages.

Shapes: N rollouts, in any order; a group is the rollouts with one id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

STD_EPS = 1e-6  # added to the std; a lone success among 16 gets 3.749985, which prints as 3.75
EQUAL_TOLERANCE = 5e-7  # a spread of a few fp32 ulps: below it rewards count as equal


def group_advantages(
    rewards_N: ArrayLike,
    group_ids_N: Sequence[str],
    kind: Literal["group_normalised", "mean_only"] = "group_normalised",
) -> NDArray[np.float64]:
    """Advantage of each rollout within its group, aligned with the input.

    `group_normalised` is GRPO's (r - mean) / (std + eps), with the sample std (ddof=1); `mean_only` is r - mean
    (SA-T1). Groups are formed by id and may differ in size. A group of one, or of equal rewards, gets exactly 0.
    Rollouts that were aborted or not scored must have left before (CA-R3).

    Raises:
        ValueError: a reward is not finite, or the lengths differ.
    """
    rewards = np.asarray(rewards_N, dtype=np.float64)
    if rewards.shape != (len(group_ids_N),):
        raise ValueError(f"{rewards.shape} rewards for {len(group_ids_N)} group ids")
    if not np.isfinite(rewards).all():
        raise ValueError("a reward is not finite")
    advantages = np.zeros_like(rewards)
    for members in group_members(group_ids_N).values():
        advantages[members] = _advantages_of_one_group(rewards[members], kind)
    return advantages


def group_members(group_ids_N: Sequence[str]) -> dict[str, list[int]]:
    """Indices of each group's members; groups are in order of first appearance."""
    members: dict[str, list[int]] = {}
    for index, group_id in enumerate(group_ids_N):
        members.setdefault(group_id, []).append(index)
    return members


def _advantages_of_one_group(rewards: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
    if np.ptp(rewards) <= EQUAL_TOLERANCE * max(1.0, np.abs(rewards).max()):
        return np.zeros_like(rewards)
    ordered = np.sort(rewards)  # so that the statistics don't depend on the order of arrival
    centred: NDArray[np.float64] = rewards - ordered.mean()
    if kind == "group_normalised":
        centred /= ordered.std(ddof=1) + STD_EPS
    return centred
