"""Sets of constraints that can all hold at once, each with a text that proves it (IF-D2)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rufus_core.data.constraints.library import KINDS, Constraint, conflict, holds, kind_of, sample
from rufus_core.data.constraints.text import draft
from rufus_core.types import Json

MIN_CONSTRAINTS, MAX_CONSTRAINTS = 2, 6
_TRIES, _ROUNDS = 6, 4


@dataclass(frozen=True, slots=True)
class Composition:
    """Constraints without a contradiction, and a text that meets them all."""

    constraints: tuple[dict[str, Json], ...]
    witness: str


def compose(rng: random.Random, count: int) -> Composition:
    """`count` constraints of different kinds. Sets for which no witness is found are drawn anew."""
    while True:
        constraints: list[dict[str, Json]] = []
        for name in rng.sample(sorted(KINDS), len(KINDS)):
            constraint = sample(name, rng)
            if len(constraints) < count and not any(conflict(constraint, other) for other in constraints):
                constraints.append(constraint)
        found = find_witness(constraints, rng)
        if found is not None:
            return Composition(tuple(constraints), found)


def find_witness(constraints: Sequence[Constraint], rng: random.Random) -> str | None:
    """A text that meets all the constraints; None where a bounded search finds none."""
    ordered = sorted(constraints, key=lambda constraint: kind_of(constraint).order)
    for _ in range(_TRIES):
        text = draft(rng)
        for _ in range(_ROUNDS):
            for constraint in ordered:
                if not holds(constraint, text):
                    text = kind_of(constraint).mend(text, constraint, rng).strip()
            if text and all(holds(constraint, text) for constraint in ordered):
                return text
    return None
