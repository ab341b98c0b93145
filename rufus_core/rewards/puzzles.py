"""Puzzles are graded by reasoning-gym's own checker of their kind (RRL-R1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rufus_core.errors import DataError
from rufus_core.types import Json, Verdict

# Their checkers hand the answer to `eval`, `exec` or sympy's parser, which is no place for untrusted text.
RUNS_ANSWER = frozenset(
    {
        "binary_matrix",
        "codeio",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)


def verify_puzzle(puzzle: Mapping[str, Json], answer: str) -> Verdict:
    """Passed iff the checker gives the full score; partial credit is none.

    Args:
        puzzle: the `dataset`'s name, its `config` and the `entry` (question, answer, metadata) that it made.

    Raises:
        DataError: reasoning-gym has no such dataset or configuration, or its checker would run the answer as code.
    """
    dataset = _dataset(puzzle["dataset"], json.dumps(puzzle["config"], sort_keys=True))
    try:
        score = dataset.score_answer(answer, puzzle["entry"])
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        # Checkers read an answer's format without care. They may fail on the policy's text, not on their own answer.
        reference = puzzle["entry"]["answer"]
        if answer == reference:
            return Verdict.unscorable(f"the checker fails on its own answer: {error}")
        return Verdict.binary(False, f"the checker could not read it: {type(error).__name__}", answer)
    return Verdict.binary(score == 1.0, f"the checker gave {score:g}", answer)


@lru_cache(maxsize=64)
def _dataset(name: str, config: str) -> Any:
    from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS:
        raise DataError(f"reasoning-gym has no dataset {name!r}")
    if name in RUNS_ANSWER:
        raise DataError(f"the checker of {name!r} runs the answer as code", hint="choose another dataset")
    try:
        return create_dataset(name, seed=0, size=1, **json.loads(config))
    except (TypeError, AssertionError) as error:
        raise DataError(f"the configuration of {name!r} is refused: {error}") from error
