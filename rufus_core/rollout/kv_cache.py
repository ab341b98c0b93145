"""Keys, values and routing of every sequence that the engine holds: one row each.

Shapes: R rows, T positions, L layers, M of them with experts, G key-value heads, D size of a head, K experts a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_FIRST_ROOM = 256  # positions of an empty cache; it doubles when a sequence needs more
_WIDTH, _UNCUT, _BLOCK = 16, 192, 512  # positions: a step of the ladder, an uncut sum, a block of attention
ROW_BLOCK = 16  # rows over which attention is equally wide
_WORTH_SORTING = 0.2  # share of attention's positions; sorting copies all of them once
SHORTEST_PREFIX = 8  # tokens; computing fewer again costs less than looking for them


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one position of a row holds."""

    layers: int
    kv_heads: int
    head_dim: int
    moe_layers: int = 0
    experts_per_token: int = 0

    @property
    def bytes_per_position(self) -> int:
        routing = self.moe_layers * self.experts_per_token
        return 2 * self.layers * self.kv_heads * self.head_dim * 4 + routing * 2 + 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `ids` of a row's prompt, from position `start` on, that are still to be computed."""

    row: int
    start: int
    ids: Sequence[int]


class RowCache:
    """Rows [0, n) run; the others keep what finished, as long as nothing else needs them.

    A row holds `lengths[row]` tokens: their ids, and for each layer their keys and values [T, 2, G, D]. It may be
    shared from while it is `fresh`: of the present weights. Rows change places by copying, so that those which run are
    always a view from the top.
    """

    def __init__(self, shape: CacheShape, rows: int, max_positions: int) -> None:
        self.shape, self.rows, self._most = shape, rows, attention_width(max_positions)
        self.positions = min(_FIRST_ROOM, self._most)
        self.lengths: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self.fresh: NDArray[np.bool_] = np.ones(rows, dtype=np.bool_)
        self.last_used: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self._allocate()

    def _allocate(self) -> None:
        shape, room = self.shape, (self.rows, self.positions)
        # Pages that no row has reached cost no memory. Zeros, and not what was there: a masked NaN is still NaN.
        self.layers = [torch.zeros(*room, 2, shape.kv_heads, shape.head_dim) for _ in range(shape.layers)]
        self.ids = torch.zeros(room, dtype=torch.int64)
        self.routing = torch.zeros(*room, shape.moe_layers, shape.experts_per_token, dtype=torch.int16)

    def _planes(self) -> list[Tensor]:
        return [self.ids, self.routing, *self.layers]

    def make_room(self, positions: int) -> None:
        """Let attention run over so many positions of every row, at most `max_positions`."""
        if (width := attention_width(positions)) <= self.positions:
            return
        held, before = self._planes(), self.positions
        while self.positions < width:
            self.positions = min(2 * self.positions, self._most)
        self._allocate()
        for old, new in zip(held, self._planes(), strict=True):
            new[:, :before] = old

    def copy(self, source: int, target: int, positions: int) -> None:
        """Let `target` hold the first `positions` of `source`, and nothing else."""
        if source != target:
            for plane in self._planes():
                plane[target, :positions] = plane[source, :positions]
            self.fresh[target], self.last_used[target] = self.fresh[source], self.last_used[source]
        self.lengths[target] = positions

    def swap(self, one: int, other: int) -> None:
        if one == other:
            return
        positions = int(max(self.lengths[one], self.lengths[other]))
        for plane in self._planes():
            kept = plane[one, :positions].clone()
            plane[one, :positions] = plane[other, :positions]
            plane[other, :positions] = kept
        for facts in (self.lengths, self.fresh, self.last_used):
            facts[[one, other]] = facts[[other, one]]

    def begin(self, row: int, ids: Sequence[int], most: int, now: int, shared_R: NDArray[np.int64]) -> int:
        """Let `row`, the first that doesn't run, hold `ids`, and say how many of them (at most `most`) it has already.

        They come from the row that shares most of them. One that doesn't run and is shared whole, or is used up
        anyway, gives its place; from any other the shared part is copied, and what `row` held moves to the place of
        what was least recently used.
        """
        donor = int(shared_R.argmax())
        known = min(int(shared_R[donor]), most)
        oldest = row + int(self.last_used[row:].argmin())
        if known and donor >= row and (known == self.lengths[donor] or donor in (row, oldest)):
            self.swap(donor, row)
        else:
            self.copy(row, oldest, int(self.lengths[row]))
            self.copy(donor, row, known)
        self.ids[row, : len(ids)] = torch.tensor(ids)
        self.lengths[row], self.fresh[row], self.last_used[row] = len(ids), True, now
        return known

    def sort(self, size: int) -> list[int] | None:
        """Bring the first `size` rows into falling order of length, where that makes attention a good deal narrower.

        The order: which row each was. None: they stay as they are.
        """
        lengths = self.lengths[:size]
        order = np.argsort(-lengths, kind="stable")
        if _total_width(lengths[order]) >= (1 - _WORTH_SORTING) * _total_width(lengths):
            return None
        most = int(lengths.max())
        for plane in self._planes():
            plane[:size, :most] = plane[torch.from_numpy(order), :most]
        for facts in (self.lengths, self.fresh, self.last_used):
            facts[:size] = facts[order]
        return [int(row) for row in order]

    def outdate(self) -> None:
        """The weights have changed: nothing that is held may be shared from."""
        self.fresh[:] = False

    def shared_prefixes(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """How many of its first tokens each row shares with `ids`; 0 where that is fewer than the shortest of use."""
        shared: NDArray[np.int64] = np.zeros(self.rows, dtype=np.int64)
        if len(ids) < SHORTEST_PREFIX:
            return shared
        wanted, held = np.asarray(ids), self.ids.numpy()
        begin = (held[:, :SHORTEST_PREFIX] == wanted[:SHORTEST_PREFIX]).all(axis=1)
        rows = np.flatnonzero(begin & self.fresh & (self.lengths >= SHORTEST_PREFIX))
        if len(rows):
            width = min(len(ids), int(self.lengths[rows].max()))
            differs = held[rows, :width] != wanted[:width]
            first = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
            shared[rows] = np.minimum(first, self.lengths[rows])
        return shared


def _total_width(lengths: NDArray[np.int64]) -> int:
    """Positions that attention runs over, block after block of rows in this order, each as wide as its longest."""
    return sum(int(lengths[first : first + ROW_BLOCK].max()) for first in range(0, len(lengths), ROW_BLOCK))


def attention_width(positions: int) -> int:
    """The width over which attention runs: the least on a ladder, without what is between 192 and 384 in a block.

    Matrix libraries sum up to 192 products in one go, and cut longer sums into parts that depend on their length.
    """
    whole, rest = divmod(positions, _BLOCK)
    if rest > _UNCUT:
        rest = max(rest, 2 * _UNCUT)
    return whole * _BLOCK + -(-rest // _WIDTH) * _WIDTH
