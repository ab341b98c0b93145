"""Reward shaping that needs the whole group.

Shapes: N rollouts, in any order; a group is the rollouts with one id.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rufus_core.algorithms.advantages import group_members


def shortest_correct_penalty(
    lengths_N: ArrayLike,
    correct_N: ArrayLike,
    truncated_N: ArrayLike,
    group_ids_N: Sequence[str],
    *,
    max_tokens: int,
    cap: float,
) -> NDArray[np.float64]:
    """What to take off each rollout's verifier score of 0 or 1 (RRL-R2).

    cap * clip((L - L*) / (max_tokens - L*), 0, 1) for a correct rollout that is not truncated, where L* is the shortest
    such length in its group, in tokens; 0 for any other rollout, so nothing happens in a group without a correct one.
    As cap < 1, a correct rollout stays above a wrong one.

    Raises:
        ValueError: `cap` is not in [0, 1).
    """
    if not 0 <= cap < 1:
        raise ValueError(f"cap must be in [0, 1), not {cap}: a longer correct answer would fall to a wrong one's score")
    lengths = np.asarray(lengths_N, dtype=np.float64)
    counts = np.asarray(correct_N, dtype=bool) & ~np.asarray(truncated_N, dtype=bool)
    penalties = np.zeros_like(lengths)
    for members in group_members(group_ids_N).values():
        chosen = [index for index in members if counts[index]]
        if not chosen:
            continue
        excess = lengths[chosen] - lengths[chosen].min()
        room = max_tokens - lengths[chosen].min()
        penalties[chosen] = cap * np.clip(excess / max(room, 1.0), 0.0, 1.0)
    return penalties
