"""Puzzles made by reasoning-gym, of the kinds whose questions are one short line (RRL-D1)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rufus_core.data.generators.sampling import distinct, refuse_unknown
from rufus_core.data.puzzle_kinds import REFUSED
from rufus_core.errors import DataError
from rufus_core.types import Json, Message, Problem

SOURCE = "puzzles"
CONFIGS: dict[str, dict[str, Json]] = {
    "spell_backward": {"min_word_len": 3, "max_word_len": 3},
    "simple_equations": {"max_terms": 2, "max_value": 9, "operators": ["+", "-"], "operators_weights": [0.5, 0.5]},
    "number_filtering": {"min_numbers": 2, "max_numbers": 3, "max_decimals": 0, "min_value": 0, "max_value": 9},
}
_ENTRIES = 2**31  # a virtual size: entries are made one by one


def problems(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """Equal shares of the kinds as far as they go; more than 40,000 distinct problems, 1,370 of them words to spell.

    Args:
        options: `datasets`, a list of reasoning-gym's names (those in `CONFIGS` by default; others come as
            reasoning-gym configures them), and `max_value`, the largest number in an equation (9).
    """
    refuse_unknown(options, "datasets", "max_value")
    names = options.get("datasets", list(CONFIGS))
    for name in names:
        if name not in CONFIGS and (fault := _fault(name)):
            raise DataError(f"unknown puzzle dataset {name!r}: {fault}", hint=f"for example one of {sorted(CONFIGS)}")
    configs = {name: dict(CONFIGS.get(name, {})) for name in names}
    if "simple_equations" in configs:
        configs["simple_equations"]["max_value"] = int(options.get("max_value", 9))
    datasets = [(config, _dataset(name, config)) for name, config in configs.items()]
    return distinct(lambda rng: _draw(datasets, rng), seed, count)


def demonstrate(problem: Problem, rng: random.Random, wrong: bool) -> list[Message]:
    """The answer in a box; an equation is turned round first, as reasoning."""
    entry = problem.ground_truth["entry"]
    misread = WRONG.get(problem.ground_truth["dataset"], _no_idea)
    answer = misread(entry, rng) if wrong else entry["answer"]
    turned = _turned_round(entry["question"])
    reasoning = f"{turned} = {answer}" if turned else ""
    return [Message(role="assistant", reasoning=reasoning, content=rf"\boxed{{{answer}}}")]


def _turned_round(question: str) -> str:
    """The calculation that gives the unknown of `x + 2 = 5`, `2 + x = 5`, `x - 2 = 1` or `5 - x = 1`."""
    if match := re.search(r"[a-z] ([+-]) (\d+) = (\d+)", question):
        sign, other, result = match.groups()
        return f"{result} {'-' if sign == '+' else '+'} {other}"
    if match := re.search(r"(\d+) ([+-]) [a-z] = (\d+)", question):
        other, sign, result = match.groups()
        return f"{result} - {other}" if sign == "+" else f"{other} - {result}"
    return ""


def _draw(datasets: list[tuple[dict[str, Json], Any]], rng: random.Random) -> Problem:
    config, dataset = rng.choice(datasets)
    entry = json.loads(json.dumps(dataset[rng.randrange(_ENTRIES)]))
    # Where in the dataset it stood is no part of a problem: equal questions have equal ids.
    name = entry["metadata"].pop("source_dataset")
    del entry["metadata"]["source_index"]
    prompt = [Message(role="user", content=entry["question"])]
    return Problem.build("puzzle", SOURCE, prompt, {"dataset": name, "config": config, "entry": entry})


def _dataset(name: str, config: Mapping[str, Json]) -> Any:
    import reasoning_gym  # slow to import

    return reasoning_gym.create_dataset(name, seed=0, size=_ENTRIES, **config)


def _fault(name: str) -> str:
    """Why reasoning-gym's dataset of this name can't be used; empty if it can."""
    from reasoning_gym.factory import DATASETS  # slow to import

    return REFUSED.get(name, "" if name in DATASETS else "reasoning-gym has none of this name")


def _no_idea(entry: Mapping[str, Json], rng: random.Random) -> str:  # noqa: ARG001 - one signature for all
    return "no idea"


def _misspelt(entry: Mapping[str, Json], rng: random.Random) -> str:
    """The word with one letter of the reversed spelling left out."""
    answer: str = entry["answer"]
    drop = rng.randrange(len(answer))
    return answer[:drop] + answer[drop + 1 :]


def _miscalculated(entry: Mapping[str, Json], rng: random.Random) -> str:
    return str(int(entry["answer"]) + rng.choice((-1, 1)))


def _misfiltered(entry: Mapping[str, Json], rng: random.Random) -> str:  # noqa: ARG001 - one signature for all
    """The numbers that had to go."""
    metadata = entry["metadata"]
    return str([number for number in metadata["original_numbers"] if number not in metadata["result"]])


WRONG: dict[str, Callable[[Mapping[str, Json], random.Random], str]] = {
    "spell_backward": _misspelt,
    "simple_equations": _miscalculated,
    "number_filtering": _misfiltered,
}
