"""Finds coding problems that a benchmark holds (CRL-D5): equal openings, and shared character 60-grams.

Both sides are lowercased with whitespace collapsed, as whitespace decides how much literal matching finds. Grams are
compared by a 64-bit hash in numpy, and every hit is confirmed in the text, so no collision counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rufus_core.data.code_layouts import statement_of
from rufus_core.data.code_records import RecordFault
from rufus_core.data.jsonl import read_rows
from rufus_core.data.text import normalised
from rufus_core.errors import DataError

Hashes = NDArray[np.uint64]
OPENING_CHARS = 400
GRAM_CHARS = 60
MIN_SHARED = 5
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd
_FILTER_BITS = 24


@dataclass(frozen=True, slots=True)
class Leak:
    """One benchmark item that a statement holds. `quote` is a shared piece of text."""

    item: str
    kind: Literal["opening", "grams"]
    num_shared: int  # distinct 60-grams
    quote: str

    def __str__(self) -> str:
        if self.kind == "opening":
            return f"{self.item}: equal opening: {self.quote!r}"
        return f"{self.item}: {self.num_shared} shared {GRAM_CHARS}-grams: {self.quote!r}"


class LeakageReference:
    """A benchmark's statements, ready to be looked up.

    Args:
        items: the statement of each item by its name.
        min_shared: distinct grams of one item that flag a statement.
        common_from: a gram that at least this many items hold is boilerplate and doesn't count; None counts all.
    """

    def __init__(self, items: dict[str, str], *, min_shared: int = MIN_SHARED, common_from: int | None = None) -> None:
        self._names = list(items)
        self._texts = [normalised(text) for text in items.values()]
        self._min_shared, self._common_from = min_shared, common_from
        self._openings = {_opening(text): index for index, text in reversed(list(enumerate(self._texts)))}
        per_item = [gram_hashes(text) for text in self._texts]
        hashes = np.concatenate([np.empty(0, np.uint64), *per_item])
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._items = np.repeat(np.arange(len(per_item)), [len(each) for each in per_item])[order]
        self._starts = np.concatenate([np.empty(0, np.int64), *(np.arange(len(each)) for each in per_item)])[order]
        self._maybe = np.zeros(1 << _FILTER_BITS, np.bool_)
        self._maybe[_slot(self._hashes)] = True

    def __len__(self) -> int:
        return len(self._names)

    def leak(self, statement: str) -> Leak | None:
        """The item that a statement shares most with, if it shares enough."""
        text = normalised(statement)
        if (index := self._openings.get(_opening(text))) is not None:
            return Leak(self._names[index], "opening", 0, text[:GRAM_CHARS])
        shared: dict[int, set[str]] = {}
        for gram, items in self._shared(text):
            if self._common_from is None or len(items) < self._common_from:
                for item in items:
                    shared.setdefault(item, set()).add(gram)
        if not shared:
            return None
        item = max(sorted(shared), key=lambda each: len(shared[each]))
        if len(shared[item]) < self._min_shared:
            return None
        return Leak(self._names[item], "grams", len(shared[item]), min(shared[item], key=text.index))

    def _shared(self, text: str) -> Iterator[tuple[str, set[int]]]:
        """Each gram of the text that the reference holds, with the items that do."""
        hashes = gram_hashes(text)
        starts = np.flatnonzero(self._maybe[_slot(hashes)])
        lefts, rights = (np.searchsorted(self._hashes, hashes[starts], side) for side in ("left", "right"))
        found = lefts < rights
        for start, left, right in zip(starts[found], lefts[found], rights[found], strict=True):
            gram = text[start : start + GRAM_CHARS]
            items = {
                int(self._items[at])
                for at in range(left, right)
                if self._texts[self._items[at]].startswith(gram, self._starts[at])
            }
            if items:
                yield gram, items


def read_reference(path: Path, *, min_shared: int = MIN_SHARED, common_from: int | None = None) -> LeakageReference:
    """A benchmark from a JSONL file: a statement in each row (`question_content`, `statement`), `question_id` or `id`.

    Raises DataError for a file that can't be read or a row without a statement: a reference with holes finds nothing.
    """
    items: dict[str, str] = {}
    for where, row in read_rows(path):
        try:
            text = statement_of(row)
        except RecordFault as fault:
            raise DataError("the row has no statement", where=where, hint="give it in `question_content`") from fault
        name = str(row.get("question_id") or row.get("id") or where.rpartition(":")[2])
        items[name if name not in items else f"{name} ({where.rpartition(':')[2]})"] = text
    return LeakageReference(items, min_shared=min_shared, common_from=common_from)


def gram_hashes(text: str, length: int = GRAM_CHARS) -> Hashes:
    """A hash of every run of `length` characters: [max(len(text) - length + 1, 0)].

    A polynomial in the characters. The hash of two neighbours is made from theirs, so 60 takes nine products.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    if len(codes) < length:
        return np.empty(0, np.uint64)
    power, size, hashes = _BASE, 1, codes + np.uint64(1)
    result, done = None, 0
    rest = length
    with np.errstate(over="ignore"):
        while True:
            if rest & 1:
                result = hashes if result is None else _joined(result, hashes, done, power)
                done += size
            rest >>= 1
            if not rest:
                assert result is not None
                return result
            hashes = _joined(hashes, hashes, size, power)
            power, size = power * power, 2 * size


def _joined(left: Hashes, right: Hashes, offset: int, power: np.uint64) -> Hashes:
    """Hashes of runs that are a left one, `offset` long, and the right one behind it. `power` is the base's to the
    length of the right one."""
    num_runs = len(right) - offset
    return left[:num_runs] * power + right[offset:]


def _slot(hashes: Hashes) -> Hashes:
    return hashes >> np.uint64(64 - _FILTER_BITS)


def _opening(text: str) -> bytes:
    return hashlib.sha256(text[:OPENING_CHARS].encode("utf-8", "surrogatepass")).digest()
