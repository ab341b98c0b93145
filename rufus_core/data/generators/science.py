"""Questions of kind: which of three words names a metal, a bird and so on. The facts recur, the questions do not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from rufus_core.data.generators.sampling import distinct, refuse_unknown
from rufus_core.errors import DataError
from rufus_core.types import Json, Message, Problem

SOURCE = "science"
KINDS: dict[str, tuple[str, ...]] = {
    "bird": ("crow", "eagle", "finch", "heron", "owl", "robin", "swan"),
    "fish": ("carp", "cod", "eel", "herring", "salmon", "trout", "tuna"),
    "gas": ("argon", "helium", "hydrogen", "neon", "nitrogen", "oxygen", "xenon"),
    "gem": ("amethyst", "diamond", "emerald", "garnet", "opal", "ruby", "topaz"),
    "metal": ("copper", "gold", "iron", "nickel", "silver", "tin", "zinc"),
    "planet": ("Earth", "Jupiter", "Mars", "Neptune", "Saturn", "Uranus", "Venus"),
    "tool": ("chisel", "drill", "hammer", "pliers", "saw", "spade", "wrench"),
    "tree": ("birch", "cedar", "elm", "maple", "oak", "pine", "willow"),
}
TEMPLATES = (
    "Which is a {kind}: {first}, {second} or {third}?",
    "Find the {kind}: {first}, {second}, {third}.",
    "{first}, {second} or {third}: which one is a {kind}?",
)


def problems(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """About a million distinct problems from 56 facts.

    Args:
        options: `kinds`, how many of the eight kinds to ask for (at least 3), and `members`, how many words of each.
    """
    refuse_unknown(options, "kinds", "members")
    num_kinds, num_members = int(options.get("kinds", len(KINDS))), int(options.get("members", 7))
    if num_kinds < 3 or num_members < 1:
        raise DataError(
            "a question needs words of three kinds", hint="set `kinds` to 3 or more, `members` to 1 or more"
        )
    facts = {kind: KINDS[kind][:num_members] for kind in list(KINDS)[:num_kinds]}
    return distinct(lambda rng: _draw(rng, facts), seed, count)


def demonstrate(problem: Problem, rng: random.Random, wrong: bool) -> list[Message]:
    """The fact as reasoning, the word in a box. Wrong: one of the two other words."""
    truth = problem.ground_truth
    word = rng.choice([w for w in truth["choices"] if w != truth["answer"]]) if wrong else truth["answer"]
    return [Message(role="assistant", reasoning=f"{truth['kind']}: {word}", content=rf"\boxed{{{word}}}")]


def _draw(rng: random.Random, facts: Mapping[str, Sequence[str]]) -> Problem:
    kinds = rng.sample(sorted(facts), 3)
    choices = [rng.choice(facts[kind]) for kind in kinds]
    kind, answer = kinds[0], choices[0]
    rng.shuffle(choices)
    first, second, third = choices
    text = rng.choice(TEMPLATES).format(kind=kind, first=first, second=second, third=third)
    truth = {"answer": answer, "kind": kind, "choices": choices}
    return Problem.build("science", SOURCE, [Message(role="user", content=text)], truth)
