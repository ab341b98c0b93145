"""All kinds of constraints by name, and what is done with a constraint whatever its kind."""

from __future__ import annotations

import random
from collections.abc import Mapping

from rufus_core.data.constraints import (
    formats,
    keywords,
    layout,
    letters,
    markdown,
    numbers,
    punctuation,
    scripts,
    sentences,
    structure,
    words,
)
from rufus_core.data.constraints.kind import Kind
from rufus_core.data.constraints.text import draft
from rufus_core.errors import DataError
from rufus_core.types import Json

Constraint = Mapping[str, Json]

GROUPS: dict[str, dict[str, Kind]] = {
    "words": words.KINDS,
    "keywords": keywords.KINDS,
    "sentences": sentences.KINDS,
    "layout and length": layout.KINDS,
    "letters and case": letters.KINDS,
    "punctuation": punctuation.KINDS,
    "numbers and dates": numbers.KINDS,
    "scripts": scripts.KINDS,
    "markdown": markdown.KINDS,
    "formats": formats.KINDS,
    "structure": structure.KINDS,
}
KINDS: dict[str, Kind] = {name: kind for group in GROUPS.values() for name, kind in group.items()}

_TYPES: dict[type, str] = {int: "a whole number, not negative", str: "a text that isn't empty", list: "a list of texts"}


def kind_of(constraint: Constraint) -> Kind:
    """Its kind, its arguments being there and of the right type.

    Raises:
        DataError: an unknown kind, or an argument that is missing or of another type.
    """
    name = constraint.get("kind")
    if not isinstance(name, str) or name not in KINDS:
        raise DataError(f"unknown constraint {name!r}", hint=f"known: {', '.join(sorted(KINDS))}")
    kind = KINDS[name]
    for argument, wanted in kind.arguments.items():
        if argument not in constraint:
            raise DataError(f"the constraint {name!r} lacks {argument!r}")
        if not _fits(constraint[argument], wanted):
            raise DataError(f"{argument!r} of the constraint {name!r} is {_TYPES[wanted]}", where=repr(constraint))
    if "script" in kind.arguments and constraint["script"] not in scripts.SCRIPTS:
        raise DataError(f"unknown script {constraint['script']!r}", hint=f"one of {', '.join(scripts.SCRIPTS)}")
    return kind


def _fits(value: Json, wanted: type) -> bool:
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if wanted is str:
        return isinstance(value, str) and value != ""
    return isinstance(value, list) and value != [] and all(isinstance(entry, str) and entry for entry in value)


def holds(constraint: Constraint, text: str) -> bool:
    """Whether the text meets the constraint. Pure and linear in the text. Raises what `kind_of` raises."""
    return bool(kind_of(constraint).check(text, constraint))


def describe(constraint: Constraint, rng: random.Random) -> str:
    """The constraint as an instruction in words, in one of its phrasings."""
    values = {name: _said(value) for name, value in constraint.items()}
    return rng.choice(kind_of(constraint).phrasings).format(**values)


def _said(value: Json) -> str:
    return ", ".join(f'"{entry}"' for entry in value) if isinstance(value, list) else str(value)


def sample(name: str, rng: random.Random) -> dict[str, Json]:
    """A constraint of the kind, with arguments drawn by seed."""
    return {"kind": name, **KINDS[name].sample(rng)}


def conflict(one: Constraint, other: Constraint) -> bool:
    """Whether the two are declared to contradict each other: they're of a kind, or both settle the same thing."""
    return one["kind"] == other["kind"] or bool(kind_of(one).claims & kind_of(other).claims)


def positive(constraint: Constraint, rng: random.Random) -> str:
    """A text that meets the constraint."""
    text = draft(rng)
    return text if holds(constraint, text) else kind_of(constraint).mend(text, constraint, rng).strip()


def negative(constraint: Constraint, text: str, rng: random.Random) -> str:
    """A text that meets the constraint, changed so that it doesn't, and in little else where that can be."""
    kind = kind_of(constraint)
    for _ in range(5):  # a word put in by chance may happen to be right
        spoilt = kind.spoil(text, constraint, rng).strip()
        if not kind.check(spoilt, constraint):
            break
    return spoilt
