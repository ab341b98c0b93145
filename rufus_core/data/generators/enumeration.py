"""Drawing from spaces that are small enough to list."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rufus_core.errors import DataError

T = TypeVar("T")


def take_in_turn(spaces: Iterable[Iterable[T]], count: int, seed: int) -> Iterator[T]:
    """`count` items, one of each space in turn while it lasts; each space in an order of its own, without repeats.

    Raises:
        DataError: the spaces hold fewer than `count` items.
    """
    rng = random.Random(seed)
    queues = [list(space) for space in spaces]
    size = sum(map(len, queues))
    if count > size:
        raise DataError(f"{count} problems are asked for where there are {size}", hint="lower `count`")
    for queue in queues:
        rng.shuffle(queue)
    for _ in range(count):
        queue = queues.pop(0)
        yield queue.pop()
        if queue:
            queues.append(queue)
