"""Rows as IFEval (arXiv 2311.07911) and IFBench (arXiv 2507.02833) publish them, as problems of their family."""

from __future__ import annotations

from collections.abc import Mapping

from rufus_core.errors import DataError
from rufus_core.types import Json, Message, Problem

_FIELDS = ("instruction_id_list", "kwargs")
# What stands before the colon of an instruction's name; no two benchmarks share one.
_GROUPS = {
    "ifeval": {
        *("change_case", "combination", "detectable_content", "detectable_format", "keywords", "language"),
        *("length_constraints", "punctuation", "startend"),
    },
    "ifbench": {"count", "custom", "format", "ratio", "repeat", "sentence", "words"},
}


def is_instruction_row(row: Mapping[str, Json]) -> bool:
    """Whether `instruction_problem` knows the row's layout."""
    return all(name in row for name in _FIELDS)


def instruction_problem(row: Mapping[str, Json], source: str, where: str) -> Problem:
    """A problem whose ground truth is the row's instructions and their arguments.

    Raises DataError for a row without a text `prompt`, and for instructions that are not of one of the benchmarks.
    """
    prompt, ids = row.get("prompt"), row["instruction_id_list"]
    if not isinstance(prompt, str) or not prompt.strip():
        raise DataError("the row has no text `prompt`", where=f"{where} prompt")
    if not isinstance(ids, list) or not ids or not all(isinstance(each, str) for each in ids):
        raise DataError("no list of names, or an empty one", where=f"{where} instruction_id_list")
    groups = {each.partition(":")[0] for each in ids}
    family = next((name for name, known in _GROUPS.items() if groups <= known), None)
    if family is None:
        what = f"{', '.join(ids)} are not instructions of one benchmark"
        raise DataError(what, where=f"{where} instruction_id_list", hint=f"of {' or '.join(_GROUPS)}")
    truth = {name: row[name] for name in _FIELDS}
    return Problem.build(family, source, [Message(role="user", content=prompt)], truth)
