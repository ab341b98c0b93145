"""Deterministic three-way splits by problem id: no problem is ever in two of them."""

from __future__ import annotations

from collections.abc import Iterable

from rufus_core.errors import DataError
from rufus_core.types import Problem, Split, content_id

HELDOUT_SHARE = 0.20
VALIDATION_SHARE = 0.08


def split_of(problem_id: str, seed: int) -> Split:
    """The split of a problem, by its id and the seed alone: 20% held out, 8% validation, the rest train."""
    place = _place(problem_id, seed)
    if place < HELDOUT_SHARE:
        return "heldout"
    return "validation" if place < HELDOUT_SHARE + VALIDATION_SHARE else "train"


def take_splits(
    problems: Iterable[Problem], num_train: int | None, num_validation: int, num_heldout: int, seed: int
) -> dict[Split, list[Problem]]:
    """Fill the three splits from a stream, and stop reading when all are full. For generators.

    A problem goes where `split_of` says, or nowhere when that split is full. `num_train=None` takes all that the
    stream holds, so it must end. A repeated id is skipped.

    Raises:
        DataError: the stream ended before a split was full.
    """
    wanted: dict[Split, int | None] = {"train": num_train, "validation": num_validation, "heldout": num_heldout}
    taken: dict[Split, list[Problem]] = {name: [] for name in wanted}
    seen: set[str] = set()
    full = {name for name, count in wanted.items() if count == 0}
    if len(full) == len(wanted):
        return taken
    for problem in problems:
        if problem.id in seen:
            continue
        seen.add(problem.id)
        split = split_of(problem.id, seed)
        if split in full:
            continue
        taken[split].append(problem)
        if len(taken[split]) == wanted[split]:
            full.add(split)
            if len(full) == len(wanted):
                return taken
    for name, count in wanted.items():
        if count is not None and name not in full:
            raise DataError(
                f"the {name} split needs {count} problems, {len(taken[name])} of {len(seen)} found fall into it",
                hint="ask for fewer problems, or add data",
            )
    return taken


def share_splits(
    problems: Iterable[Problem], num_train: int | None, num_validation: int, num_heldout: int, seed: int
) -> dict[Split, list[Problem]]:
    """Share out a finite file. For a user's own problems, which may be few.

    In an order that depends on ids and seed alone, the first problems are held out, the next are for validation and
    the rest for training. A file too small for the numbers asked gives up at most 20% to held-out and 8% to
    validation, but at least one problem to each that is asked for. Unlike `split_of`, a problem's split may
    change when the file does. `num_train=None` takes the whole rest. A repeated id is skipped.

    Raises:
        DataError: fewer than three distinct problems, or fewer training problems than asked for.
    """
    distinct = {problem.id: problem for problem in problems}
    if len(distinct) < 3:
        raise DataError(
            f"{len(distinct)} distinct problems can't fill three splits", hint="give at least three, better hundreds"
        )
    ranked = sorted(distinct.values(), key=lambda problem: (_place(problem.id, seed), problem.id))
    heldout = min(num_heldout, max(1, int(len(ranked) * HELDOUT_SHARE)))
    validation = min(num_validation, max(1, int(len(ranked) * VALIDATION_SHARE)))
    train = ranked[heldout + validation :]
    if num_train is not None and num_train > len(train):
        raise DataError(
            f"{num_train} training problems are asked for; {len(ranked)} distinct problems leave {len(train)}",
            hint="lower the count or add data",
        )
    return {
        "train": train[:num_train],
        "validation": ranked[heldout : heldout + validation],
        "heldout": ranked[:heldout],
    }


def _place(problem_id: str, seed: int) -> float:
    """A number in [0, 1), evenly spread over the ids."""
    return int(content_id("holdout", seed, problem_id), 16) / 2**64
