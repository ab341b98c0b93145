"""What a problem needs so that its family's verifier can grade it (CRL-D3 for code; the same idea for the others)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rufus_core.data.code_records import RecordFault, read_tests
from rufus_core.data.harbor import FAMILY, read_terminal
from rufus_core.data.puzzle_kinds import REFUSED
from rufus_core.data.worlds import WORLDS, read_world
from rufus_core.errors import DataError
from rufus_core.rewards.generated import puzzle_checker, require_source
from rufus_core.rewards.rubrics import check_rubric
from rufus_core.types import Json, Problem

Check = Callable[[Mapping[str, Json]], str | None]


def problem_fault(problem: Problem) -> str | None:
    """Why a problem can't be used; None when it can. A family without a check of its own needs a prompt alone."""
    if not problem.prompt or problem.prompt[-1].role != "user":
        return "the prompt doesn't end with a user's message"
    if not problem.prompt[-1].content.strip():
        return "the last message is empty"
    check = CHECKS.get(problem.family)
    try:
        return check(problem.ground_truth) if check else None
    except DataError as fault:
        return fault.what


def _answer(truth: Mapping[str, Json]) -> str | None:
    answer = truth.get("answer")
    return None if isinstance(answer, str) and answer.strip() else "ground_truth.answer is no text"


def _puzzle(truth: Mapping[str, Json]) -> str | None:
    if "checker" in truth:
        require_source(puzzle_checker(truth))
        return None
    dataset, config, entry = (truth.get(name) for name in ("dataset", "config", "entry"))
    if not (isinstance(dataset, str) and isinstance(config, dict) and isinstance(entry, dict)):
        return "ground_truth needs a dataset, its config and an entry, or a checker with examples"
    if not isinstance(entry.get("answer"), str):
        return "ground_truth.entry.answer is no text"
    return f"reasoning-gym's {dataset!r} can't be used: {REFUSED[dataset]}" if dataset in REFUSED else None


def _rubrics(truth: Mapping[str, Json]) -> str | None:
    rubrics = truth.get("rubrics")
    if not isinstance(rubrics, list) or not rubrics:
        return "ground_truth.rubrics is no list, or empty"
    for rubric in rubrics:
        if not isinstance(rubric, dict):
            return "a rubric is no object"
        check_rubric(rubric)
    return None


def _instructions(truth: Mapping[str, Json]) -> str | None:
    """Which instructions there are, and their arguments, is their package's to say (`trial.py`)."""
    ids, kwargs = truth.get("instruction_id_list"), truth.get("kwargs")
    if not isinstance(ids, list) or not ids or not all(isinstance(each, str) for each in ids):
        return "ground_truth.instruction_id_list is no list of names, or empty"
    if not isinstance(kwargs, list) or not all(isinstance(each, dict) for each in kwargs):
        return "ground_truth.kwargs is no list of objects"
    if len(ids) != len(kwargs):
        return f"ground_truth has {len(ids)} instructions, and {len(kwargs)} sets of arguments"
    return (
        None if truth.get("mode", "strict") in ("strict", "loose") else "ground_truth.mode is neither strict nor loose"
    )


def _tests(truth: Mapping[str, Json]) -> str | None:
    try:
        read_tests(truth)
    except RecordFault as fault:
        return f"{fault.field}: {fault.what}"
    return None


def _terminal(truth: Mapping[str, Json]) -> str | None:
    read_terminal(truth)
    return None


def _world(truth: Mapping[str, Json]) -> str | None:
    _, database = read_world(truth)
    database.close()
    return None


def _pair(truth: Mapping[str, Json]) -> str | None:
    odd = [name for name in ("chosen", "rejected") if not isinstance(truth.get(name), str | None)]
    return f"ground_truth.{odd[0]} is no text" if odd else None


CHECKS: dict[str, Check] = {
    **dict.fromkeys(("arithmetic", "math", "science", "calculation"), _answer),
    **dict.fromkeys(("person", "thing", "owner", "pair"), _answer),
    "puzzle": _puzzle,
    **dict.fromkeys(("python_function", "python_program"), _tests),
    "instructions": _rubrics,
    **dict.fromkeys(("ifeval", "ifbench"), _instructions),
    FAMILY: _terminal,
    **dict.fromkeys(WORLDS, _world),
    "chat": _pair,
}
