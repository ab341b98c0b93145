"""Puzzles are graded by reasoning-gym's own checker of their kind, or by a stricter rule of ours (RRL-R1)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from rufus_core.data.puzzle_kinds import REFUSED, RUNS_ANSWER
from rufus_core.errors import DataError
from rufus_core.rewards.puzzle_rules import (
    reaches_target,
    same_fraction,
    same_number,
    same_probability,
    same_stripped,
    same_text,
    valid_board,
)
from rufus_core.types import Json, Verdict

__all__ = ["RULES", "RUNS_ANSWER", "verify_puzzle"]

MAX_CHARACTERS = 20_000
_NOT_FINITE = re.compile(r"(?<![a-z])(?:nan|inf|infinity)(?![a-hk-z])", re.IGNORECASE)  # nothing differs from a NaN

# Where their checker hands the answer to `eval` for partial credit, or pays for a right part, or for any text. A rule
# asks for what their full score stands for.
RULES: dict[str, Callable[[Mapping[str, Json], str], bool]] = {
    "binary_matrix": same_text,
    "coin_flip": same_probability,
    "countdown": reaches_target,
    "fraction_simplification": same_fraction,
    "game_of_life_halting": same_stripped,
    "gsm_symbolic": same_number,
    "n_queens": valid_board,
    "puzzle24": reaches_target,
    "spiral_matrix": same_stripped,
    "string_insertion": same_text,
}


def verify_puzzle(puzzle: Mapping[str, Json], answer: str) -> Verdict:
    """Passed iff the checker gives the full score; partial credit is none.

    Args:
        puzzle: the `dataset`'s name, its `config` and the `entry` (question, answer, metadata) that it made.

    Raises:
        DataError: reasoning-gym has no such dataset or configuration, or its checker can't be used (`REFUSED`).
    """
    name, config, entry = (puzzle.get(key) for key in ("dataset", "config", "entry"))
    if (
        not isinstance(name, str)
        or not isinstance(config, dict)
        or not isinstance(entry, dict)
        or "answer" not in entry
    ):
        return Verdict.unscorable("the record has no `dataset`, `config` and `entry` with an answer")
    dataset = _dataset(name, json.dumps(config, sort_keys=True))
    if len(answer) > MAX_CHARACTERS:
        return Verdict.binary(False, f"more than {MAX_CHARACTERS} characters", answer)
    if _NOT_FINITE.search(answer) and not _NOT_FINITE.search(str(entry["answer"])):
        return Verdict.binary(False, "not a finite number", answer)
    try:
        if name in RULES:
            return Verdict.binary(RULES[name](entry, answer), f"by the rule of {name}", answer)
        score = dataset.score_answer(answer, entry)
    except Exception as error:  # noqa: BLE001 - checkers read an answer's format without care and raise everything
        # They may fail on the policy's text, not on their own answer.
        if answer == entry["answer"]:
            return Verdict.unscorable(f"the checker fails on its own answer: {error}")
        return Verdict.binary(False, f"the checker could not read it: {type(error).__name__}", answer)
    return Verdict.binary(score == 1.0, f"the checker gave {score:g}", answer)


@lru_cache(maxsize=64)
def _dataset(name: str, config: str) -> Any:
    from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS:
        raise DataError(f"reasoning-gym has no dataset {name!r}")
    if name in REFUSED:
        raise DataError(f"reasoning-gym's {name!r} can't be used: {REFUSED[name]}", hint="choose another dataset")
    try:
        return create_dataset(name, seed=0, size=1, **json.loads(config))
    except (TypeError, AssertionError) as error:
        raise DataError(f"the configuration of {name!r} is refused: {error}") from error
