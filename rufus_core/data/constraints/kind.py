"""What a kind of constraint is, and the kinds that count something.

A constraint is a rubric `{"kind": name, arguments}`. Its kind checks a text, and has two edits that the examples are
made by: `mend` brings a text to meet the constraint and touches little else, `spoil` breaks one that meets it.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rufus_core.types import Json

Args = Mapping[str, Json]
Edit = Callable[[str, Args, random.Random], str]
Sampler = Callable[[random.Random], dict[str, Json]]

_MAX_EDITS = 600  # of one unit each, on the way to a count


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of constraint.

    Args:
        phrasings: the instruction in words; `{name}` stands for an argument.
        check: pure, linear in the text, the same for the same text.
        sample: arguments, drawn by seed.
        arguments: the type of each argument: int (a count, never negative), str, or list (of str).
        claims: what of the text it settles alone ("first", "case", ...). Two kinds with a claim in common conflict.
        order: edits of a lower order come first; later ones may have to follow what these wrote.
    """

    phrasings: tuple[str, ...]
    check: Callable[[str, Args], bool]
    mend: Edit
    spoil: Edit
    sample: Sampler = lambda _: {}
    arguments: Mapping[str, type] = field(default_factory=dict)
    claims: frozenset[str] = frozenset()
    order: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """Something that a text has a number of. `add` makes it one more, `drop` one fewer."""

    count: Callable[[str, Args], int]
    add: Edit
    drop: Edit

    def resize(self, text: str, args: Args, target: int, rng: random.Random) -> str:
        """The text with `target` of them, or as near as its edits come."""
        for _ in range(_MAX_EDITS):
            have = self.count(text, args)
            if have == target:
                break
            edited = (self.add if have < target else self.drop)(text, args, rng)
            if edited == text:
                break
            text = edited
        return text


def counts(low: int, high: int) -> Sampler:
    return lambda rng: {"count": rng.randint(low, high)}


@dataclass(frozen=True, slots=True)
class Relation:
    """How what a text has of a unit must stand to the argument `count`. Calling it makes a kind.

    Args:
        holds: of what the text has, and of `count`.
        nearest: what meets `count` and is nearest to what the text has.
        miss: what just doesn't meet `count`.
    """

    holds: Callable[[int, int], bool]
    nearest: Callable[[int, int], int]
    miss: Callable[[int, random.Random], int]

    def __call__(
        self,
        unit: Unit,
        sample: Sampler,
        *phrasings: str,
        claims: frozenset[str] = frozenset(),
        order: int = 0,
        **arguments: type,
    ) -> Kind:
        return Kind(
            phrasings=phrasings,
            check=lambda text, args: self.holds(unit.count(text, args), args["count"]),
            mend=lambda text, args, rng: unit.resize(
                text, args, self.nearest(unit.count(text, args), args["count"]), rng
            ),
            spoil=lambda text, args, rng: unit.resize(text, args, self.miss(args["count"], rng), rng),
            sample=sample,
            arguments={"count": int, **arguments},
            claims=claims,
            order=order,
        )


exactly = Relation(operator.eq, lambda _, count: count, lambda count, rng: count + rng.choice((1, -1)))
at_least = Relation(operator.ge, max, lambda count, _: count - 1)
at_most = Relation(operator.le, min, lambda count, _: count + 1)
