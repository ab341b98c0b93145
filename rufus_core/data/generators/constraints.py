"""Queries with two to six constraints that a program checks (IF-D2), from the library in `data/constraints`.

The queries are a few of our own, or those of the option `queries`. Every problem's ground truth has a witness: a text
that meets all of its constraints at once, though it answers no query.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from rufus_core.data.constraints.compose import MAX_CONSTRAINTS, MIN_CONSTRAINTS, compose
from rufus_core.data.constraints.library import describe, negative
from rufus_core.data.generators.sampling import distinct, refuse_unknown
from rufus_core.errors import DataError
from rufus_core.types import Json, Message, Problem

SOURCE = "constraints"
QUERIES = (
    "Explain how a rainbow forms.",
    "Tell me about the history of bread.",
    "How do I keep houseplants alive in winter?",
    "Describe a walk through an old town.",
    "What should I know before I buy a bicycle?",
    "Write about a lighthouse keeper.",
    "Why is the sea salty?",
    "Give me advice for a first job interview.",
    "How does a library decide which books to keep?",
    "Recommend a weekend for a family in the mountains.",
    "What makes a good neighbour?",
    "Explain compound interest to a child.",
    "Describe how to brew tea properly.",
    "Tell a story about a lost key.",
    "How do birds find their way in autumn?",
    "What are the merits of trains over planes?",
    "Write a note that invites colleagues to lunch.",
    "How can I learn a language in a year?",
    "Describe the taste of a lemon to someone who never had one.",
    "What does a town need to be kind to pedestrians?",
)


def problems(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """Practically without end.

    Args:
        options: `queries`, a list of requests to constrain; `min_constraints` (2) and `max_constraints` (6).

    Raises:
        DataError: an unknown option, or one that can't be used.
    """
    refuse_unknown(options, "queries", "min_constraints", "max_constraints")
    queries = read_queries(options)
    least, most = options.get("min_constraints", MIN_CONSTRAINTS), options.get("max_constraints", MAX_CONSTRAINTS)
    if not MIN_CONSTRAINTS <= least <= most <= MAX_CONSTRAINTS:
        raise DataError(
            f"from {least} to {most} constraints can't be asked for",
            hint=f"{MIN_CONSTRAINTS} to {MAX_CONSTRAINTS} (IF-D2)",
        )
    return distinct(lambda rng: _problem(rng, queries, rng.randint(least, most)), seed, count)


def demonstrate(problem: Problem, rng: random.Random, wrong: bool) -> list[Message]:
    """The witness. Wrong: changed so that one constraint at least doesn't hold."""
    text = problem.ground_truth["witness"]
    if wrong:
        text = negative(rng.choice(problem.ground_truth["rubrics"]), text, rng)
    return [Message(role="assistant", reasoning="", content=text)]


def ask(query: str, instructions: Sequence[str], rng: random.Random) -> str:
    """The query and its instructions as one request, in one of three layouts."""
    return rng.choice(
        [
            " ".join([query, *instructions]),
            "\n".join([query, "", *(f"- {instruction}" for instruction in instructions)]),
            "\n".join([*instructions, "", query]),
        ]
    )


def read_queries(options: Mapping[str, Json]) -> Sequence[str]:
    """The option `queries`, or our own. Raises DataError where it is no list of texts, or an empty one."""
    queries: Sequence[str] = options.get("queries", QUERIES)
    if not queries or not all(isinstance(query, str) and query.strip() for query in queries):
        raise DataError("queries are texts, and there must be one at least")
    return queries


def _problem(rng: random.Random, queries: Sequence[str], count: int) -> Problem:
    query, composition = rng.choice(queries), compose(rng, count)
    asked = ask(query, [describe(constraint, rng) for constraint in composition.constraints], rng)
    ground_truth = {"rubrics": list(composition.constraints), "witness": composition.witness}
    return Problem.build("instructions", SOURCE, [Message(role="user", content=asked)], ground_truth)
