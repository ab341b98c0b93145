"""Packs token sequences into rows of bounded length (SFT-06, SLM-02).

Shape suffix: T = tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rufus_core.errors import DataError

IGNORE = -100  # the label of a position that predicts no target


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Several sequences, one after the other. A token may attend only within its segment.

    Labels are shifted: position t predicts the token at t + 1. `labels_T[t]` is its id where that token is supervised
    and in the same segment, and IGNORE elsewhere. So the first token of a segment is never a target, and the last
    position of a segment has none. Positions restart at 0 in each segment; segments count from 0.
    """

    ids_T: NDArray[np.int64]
    positions_T: NDArray[np.int64]
    segments_T: NDArray[np.int64]
    labels_T: NDArray[np.int64]

    @classmethod
    def build(cls, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> PackedRow:
        """Concatenate (token ids, loss mask with one entry for each id).

        Raises:
            DataError: a mask of another length than its ids, or an empty sequence.
        """
        for index, (ids, mask) in enumerate(sequences):
            if len(ids) != len(mask) or not ids:
                raise DataError(f"{len(ids)} ids with {len(mask)} mask entries", where=f"sequence {index}")
        sizes = [len(ids) for ids, _ in sequences]
        ids_T = np.concatenate([np.asarray(ids, dtype=np.int64) for ids, _ in sequences])
        supervised_T = np.concatenate([np.asarray(mask, dtype=np.int64) for _, mask in sequences])
        positions_T = np.concatenate([np.arange(size) for size in sizes])
        segments_T = np.repeat(np.arange(len(sizes)), sizes)
        labels_T = np.full_like(ids_T, IGNORE)
        predicts_T = (supervised_T[1:] == 1) & (segments_T[1:] == segments_T[:-1])
        labels_T[:-1][predicts_T] = ids_T[1:][predicts_T]
        return cls(ids_T, positions_T, segments_T, labels_T)


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of indices into `lengths` with at most `capacity` tokens each, by first-fit decreasing.

    Every sequence is in exactly one row, whole. Equal lengths keep their order, so the result is deterministic.
    Takes O(n log n).

    Raises:
        DataError: a sequence is empty or longer than the capacity; nothing is ever cut.
    """
    for index, length in enumerate(lengths):
        if not 0 < length <= capacity:
            raise DataError(
                f"a sequence of {length} tokens can't be packed into rows of {capacity}",
                where=f"sequence {index}",
                hint="lower sample_cap_tokens or raise context_tokens",
            )
    rows: list[list[int]] = []
    room = _Room(len(lengths), capacity)
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = room.take(lengths[index])
        if row == len(rows):
            rows.append([])
        rows[row].append(index)
    return rows


class _Room:
    """The room left in each row, as a tree of maxima, so that the first row with enough room is found quickly."""

    def __init__(self, num_rows: int, capacity: int) -> None:
        self._width = 1 << max(num_rows - 1, 0).bit_length()
        self._most = [capacity] * (2 * self._width)  # node i has the children 2i and 2i + 1

    def take(self, length: int) -> int:
        """The first row with room for `length`; its room shrinks by as much."""
        node = 1
        while node < self._width:
            node = 2 * node if self._most[2 * node] >= length else 2 * node + 1
        row = node - self._width
        self._most[node] -= length
        while node > 1:
            node //= 2
            self._most[node] = max(self._most[2 * node], self._most[2 * node + 1])
        return row
