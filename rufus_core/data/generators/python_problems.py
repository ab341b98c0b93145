"""Small Coding RL problems: one-line functions (graded by asserts) and programs (graded by input and output)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rufus_core.data.generators.sampling import distinct, refuse_unknown
from rufus_core.data.words import NOUNS
from rufus_core.types import Json, Message, Problem

SOURCE = "python_problems"
FUNCTION_SYSTEM = "Write the function in one python block."  # CRL-D2: one for each modality
PROGRAM_SYSTEM = "Write the program in one python block."


@dataclass(frozen=True, slots=True)
class _Operation:
    """What is done with a number: in words, in Python, and as a value."""

    words: str
    code: str
    value: Callable[[int, int], int]


_OPERATIONS = {
    "plus": _Operation("{x} plus {n}", "{x} + {n}", lambda x, n: x + n),
    "minus": _Operation("{x} minus {n}", "{x} - {n}", lambda x, n: x - n),
    "times": _Operation("{x} times {n}", "{x} * {n}", lambda x, n: x * n),
    "larger": _Operation("the larger of {x} and {n}", "max({x}, {n})", max),
    "smaller": _Operation("the smaller of {x} and {n}", "min({x}, {n})", min),
}
_FUNCTION_PHRASINGS = (
    "Write a function {noun}(x) that returns {words}.",
    "Write {noun}(x) to return {words}.",
    "The function {noun}(x) must return {words}.",
)
_PROGRAM_PHRASINGS = (
    "Read the {noun} count x and print {words}.",
    "Given the {noun} count x, print {words}.",
)
_REPEAT_PHRASINGS = (
    "Read the {noun} word and print it {n} times.",
    "Given the {noun} word, print it {n} times.",
)


def functions(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """Functional problems; about 35,000 distinct ones. Raises DataError beyond that."""
    refuse_unknown(options)
    return distinct(_draw_function, seed, count)


def programs(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """Problems on standard input and output; about 23,000 distinct ones. Raises DataError beyond that."""
    refuse_unknown(options)
    return distinct(_draw_program, seed, count)


def demonstrate(problem: Problem, rng: random.Random, wrong: bool) -> list[Message]:
    """The solution in a fenced block. Wrong: another constant or operation, a value printed or not converted."""
    truth = problem.ground_truth
    noun, operation, n = truth["noun"], truth["operation"], truth["constant"]
    functional = truth["modality"] == "functional"
    slip = rng.choice(("constant", "operation", "form")) if wrong else ""
    if slip == "constant":
        n = n + rng.choice((-1, 1))
    if slip == "operation" and operation in _OPERATIONS:
        operation = rng.choice([name for name in _OPERATIONS if name != operation])
    if operation == "repeat":
        code = f"print(input() + {n})" if slip in ("operation", "form") else f"print(input() * {n})"
        thought = f"word times {n}"
    else:
        expression = _OPERATIONS[operation].code.format(x="x", n=n)
        thought = _OPERATIONS[operation].words.format(x="x", n=n)
        if functional:
            code = f"def {noun}(x):\n    " + (f"print({expression})" if slip == "form" else f"return {expression}")
        else:
            code = f"x = {'input()' if slip == 'form' else 'int(input())'}\nprint({expression})"
    return [Message(role="assistant", reasoning=thought, content=f"```python\n{code}\n```")]


def _draw_function(rng: random.Random) -> Problem:
    noun, operation, n = rng.choice(NOUNS), rng.choice(list(_OPERATIONS)), rng.randint(2, 99)
    words = _OPERATIONS[operation].words.format(x="x", n=n)
    text = rng.choice(_FUNCTION_PHRASINGS).format(noun=noun, words=words)
    tests = [f"assert {noun}({x}) == {_OPERATIONS[operation].value(x, n)}" for x in _inputs(text, n)]
    return _problem("python_function", FUNCTION_SYSTEM, text, _truth("functional", tests, noun, operation, n))


def _draw_program(rng: random.Random) -> Problem:
    noun, operation = rng.choice(NOUNS), rng.choice([*_OPERATIONS, "repeat"])
    if operation == "repeat":
        n = rng.randint(2, 9)
        text = rng.choice(_REPEAT_PHRASINGS).format(noun=noun, n=n)
        inputs = random.Random(text).sample(NOUNS, 3)
        tests = [{"input": f"{word}\n", "output": f"{word * n}\n"} for word in inputs]
    else:
        n = rng.randint(2, 99)
        text = rng.choice(_PROGRAM_PHRASINGS).format(noun=noun, words=_OPERATIONS[operation].words.format(x="x", n=n))
        value = _OPERATIONS[operation].value
        tests = [{"input": f"{x}\n", "output": f"{value(x, n)}\n"} for x in _inputs(text, n)]
    return _problem("python_program", PROGRAM_SYSTEM, text, _truth("stdin_stdout", tests, noun, operation, n))


def _inputs(statement: str, n: int) -> list[int]:
    """Four inputs, a function of the statement, on both sides of the constant: no two operations agree on all."""
    rng = random.Random(statement)
    return [0, n - 1, n + 1, rng.randint(n + 2, n + 99)]


def _truth(modality: str, tests: list[Json], noun: str, operation: str, n: int) -> dict[str, Json]:
    return {"modality": modality, "tests": tests, "noun": noun, "operation": operation, "constant": n}


def _problem(family: str, system: str, text: str, truth: dict[str, Json]) -> Problem:
    prompt = [Message(role="system", content=system), Message(role="user", content=text)]
    return Problem.build(family, SOURCE, prompt, truth)
