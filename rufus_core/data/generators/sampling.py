"""What generators share: drawing distinct problems, and refusing options they do not know."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from rufus_core.errors import DataError
from rufus_core.types import Json, Problem

_MAX_REPEATS = 2000  # draws in a row without a new problem, after which the space counts as used up


def distinct(draw: Callable[[random.Random], Problem], seed: int, count: int) -> Iterator[Problem]:
    """`count` drawn problems with distinct ids, the same for the same seed.

    Raises:
        DataError: `draw` makes too few different problems.
    """
    rng = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        for _ in range(_MAX_REPEATS):
            problem = draw(rng)
            if problem.id not in seen:
                break
        else:
            raise DataError(f"only {len(seen)} distinct problems found where {count} are asked for")
        seen.add(problem.id)
        yield problem


def refuse_unknown(options: Mapping[str, Json], *known: str) -> None:
    """Raises DataError for an option that is not among `known`."""
    for name in options:
        if name not in known:
            raise DataError(f"unknown generator option {name!r}", hint=f"known: {', '.join(known) or 'none'}")
