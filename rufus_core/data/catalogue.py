"""Problem generators by the name a recipe calls them."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rufus_core.data.generators import (
    arithmetic,
    chat,
    constraints,
    dialogues,
    instructions,
    mcp_worlds,
    puzzles,
    python_problems,
    science,
    search_corpus,
    terminal_problems,
)
from rufus_core.errors import ConfigError
from rufus_core.types import Json, Message, Problem


@dataclass(frozen=True, slots=True)
class Generator:
    """`problems(seed, count, options)`: distinct, deterministic. `demonstrate(problem, rng, wrong)` answers one.

    The miniature's vocabulary is counted from what generators with a `closed_vocabulary` write.
    """

    problems: Callable[[int, int, Mapping[str, Json]], Iterator[Problem]]
    demonstrate: Callable[[Problem, random.Random, bool], list[Message]]
    closed_vocabulary: bool = True


GENERATORS: dict[str, Generator] = {
    "arithmetic": Generator(arithmetic.problems, arithmetic.demonstrate),
    "puzzles": Generator(puzzles.problems, puzzles.demonstrate),
    "science": Generator(science.problems, science.demonstrate),
    "python_functions": Generator(python_problems.functions, python_problems.demonstrate),
    "python_programs": Generator(python_problems.programs, python_problems.demonstrate),
    "instructions": Generator(instructions.problems, instructions.demonstrate),
    "constraints": Generator(constraints.problems, constraints.demonstrate, closed_vocabulary=False),
    "dialogues": Generator(dialogues.problems, dialogues.demonstrate, closed_vocabulary=False),
    "mcp_worlds": Generator(mcp_worlds.problems, mcp_worlds.demonstrate),
    "terminal": Generator(terminal_problems.problems, terminal_problems.demonstrate),
    "search_corpus": Generator(search_corpus.problems, search_corpus.demonstrate),
    "chat": Generator(chat.problems, chat.demonstrate),
}
CLOSED_VOCABULARY = {name: each for name, each in GENERATORS.items() if each.closed_vocabulary}


def generator(name: str) -> Generator:
    """Raises ConfigError, with the nearest known name, for an unknown generator."""
    if name not in GENERATORS:
        near = difflib.get_close_matches(name, GENERATORS, 1)
        raise ConfigError(
            f"there is no generator {name!r}",
            hint=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(GENERATORS)}",
        )
    return GENERATORS[name]
