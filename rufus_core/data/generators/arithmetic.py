"""Sums and differences of single digits, bare or as one-sentence word problems (RRL-D1, RRL-D6)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from rufus_core.data.generators.sampling import distinct, refuse_unknown
from rufus_core.data.words import NAMES
from rufus_core.types import Json, Message, Problem

SOURCE = "arithmetic"
THINGS = ("apples", "chairs", "eggs", "hats", "jars", "lamps", "pens", "shoes")
TEMPLATES = {
    "+": (
        "What is {a} + {b}?",
        "{name} has {a} {things} and gets {b} more. How many?",
        "{name} has {a} {things} and buys {b}. How many?",
    ),
    "-": (
        "What is {a} - {b}?",
        "{name} has {a} {things} and loses {b}. How many?",
        "{name} has {a} {things} and sells {b}. How many?",
    ),
}


def problems(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """Some 60,000 distinct problems with all ten digits.

    Args:
        options: `max_operand`, the largest digit (9).
    """
    refuse_unknown(options, "max_operand")
    largest = int(options.get("max_operand", 9))
    return distinct(lambda rng: _draw(rng, largest), seed, count)


def demonstrate(problem: Problem, rng: random.Random, wrong: bool) -> list[Message]:
    """The calculation as reasoning, the result in a box. Wrong: off by one or two, or the other operation's result."""
    a, sign, b = problem.ground_truth["operands"]
    result = int(problem.ground_truth["answer"])
    if wrong:
        other = abs(a - b) if sign == "+" else a + b
        result = rng.choice([n for n in {result - 2, result - 1, result + 1, result + 2, other} - {result} if n >= 0])
    return [Message(role="assistant", reasoning=f"{a} {sign} {b} = {result}", content=rf"\boxed{{{result}}}")]


def _draw(rng: random.Random, largest: int) -> Problem:
    sign = rng.choice("+-")
    a, b = rng.randint(0, largest), rng.randint(0, largest)
    if sign == "-":
        a, b = max(a, b), min(a, b)
    text = rng.choice(TEMPLATES[sign]).format(a=a, b=b, name=rng.choice(NAMES), things=rng.choice(THINGS))
    truth = {"answer": str(a + b if sign == "+" else a - b), "operands": [a, sign, b]}
    return Problem.build("arithmetic", SOURCE, [Message(role="user", content=text)], truth)
