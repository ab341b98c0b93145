"""Sums and differences of single digits, bare or as one-sentence word problems (RRL-D1, RRL-D6).

Or, for a pretrained model that has its own format, to be answered in the manner of one worked example.
"""

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


ONE_SHOT = "calculation"  # the family of problems after a worked example
WORKED = (7, 5)  # shown to the policy, and so no problem
LARGEST_DIGIT = 9


def problems(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """Some 60,000 distinct problems with all ten digits.

    Args:
        options: `max_operand`, the largest digit (9). With `one_shot` a problem follows a worked example,
            and is a number up to `max_operand` plus a digit that is no larger: 54 problems up to 9, 154 up to 19.
    """
    refuse_unknown(options, "max_operand", "one_shot")
    largest = int(options.get("max_operand", LARGEST_DIGIT))
    draw = _draw_one_shot if options.get("one_shot") else _draw
    return distinct(lambda rng: draw(rng, largest), seed, count)


def demonstrate(problem: Problem, rng: random.Random, wrong: bool) -> list[Message]:
    """The calculation as reasoning, the result in a box; of a one-shot problem the calculation alone.

    Wrong: off by one or two, or the other operation's result.
    """
    a, sign, b = problem.ground_truth["operands"]
    result = int(problem.ground_truth["answer"])
    if wrong:
        other = abs(a - b) if sign == "+" else a + b
        result = rng.choice([n for n in {result - 2, result - 1, result + 1, result + 2, other} - {result} if n >= 0])
    if problem.family == ONE_SHOT:
        return [Message(role="assistant", reasoning="", content=f"{a} {sign} {b} = {result}")]
    return [Message(role="assistant", reasoning=f"{a} {sign} {b} = {result}", content=rf"\boxed{{{result}}}")]


def _draw(rng: random.Random, largest: int) -> Problem:
    sign = rng.choice("+-")
    a, b = rng.randint(0, largest), rng.randint(0, largest)
    if sign == "-":
        a, b = max(a, b), min(a, b)
    text = rng.choice(TEMPLATES[sign]).format(a=a, b=b, name=rng.choice(NAMES), things=rng.choice(THINGS))
    truth = {"answer": str(a + b if sign == "+" else a - b), "operands": [a, sign, b]}
    return Problem.build("arithmetic", SOURCE, [Message(role="user", content=text)], truth)


def _draw_one_shot(rng: random.Random, largest: int) -> Problem:
    a, b = WORKED
    shown = [
        Message(role="system", content="Reply with the result."),
        Message(role="user", content=f"What is {a} + {b}?"),
        Message(role="assistant", content=f"{a} + {b} = {a + b}"),
    ]
    while (a, b) == WORKED:
        b = rng.randint(0, min(largest, LARGEST_DIGIT))
        a = rng.randint(b, largest)  # one order only: 3 + 5 must not be held out where 5 + 3 is trained on
    truth = {"answer": str(a + b), "operands": [a, "+", b]}
    return Problem.build(ONE_SHOT, SOURCE, [*shown, Message(role="user", content=f"What is {a} + {b}?")], truth)
