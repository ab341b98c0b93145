"""A user's file of RL problems: rows as our own artifacts hold them, preference pairs, questions with answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from rufus_core.data.sources import QUESTION_FAMILY, question_problem, read_problems
from rufus_core.errors import DataError
from rufus_core.jobs.problem_schema import problem_fault
from rufus_core.types import Json, Message, Problem, ToolSchema

PAIRS = "chat"  # the family of preference pairs
_FIELDS = "expected `prompt` and `ground_truth`, and `family` where the stage has several"


def read_problem_file(
    path: Path | str, source: str, families: Sequence[str], counts: Counter[str] | None = None, ungraded: bool = False
) -> Iterator[Problem]:
    """Yield the file's rows as problems of one of `families`; the layout of each row is recognised by its fields.

    `prompt` (a text, or messages), `ground_truth`, `family` and, where there are any, `tools`: a problem, as our
    artifacts hold it; its id is made anew. `prompt`, `chosen` and `rejected`: a preference prompt. A question and an
    answer: see `question_problem`. `counts` is for `read_problems`.

    Args:
        ungraded: leave problems in that their verifier can't grade: somebody else counts them.

    Raises:
        DataError: while iterating, for a missing or empty file, a broken line, a row without usable fields, a family
            that isn't among `families`, or a problem that its verifier can't grade.
    """

    def read(row: Mapping[str, Json], source: str, where: str) -> Problem:
        problem = _problem(row, source, families, where)
        fault = None if ungraded else problem_fault(problem)
        if fault is not None:
            raise DataError(
                f"a problem of the family {problem.family!r} can't be graded: {fault}",
                where=where,
                hint="mend the row, or drop such rows with the filter `schema`",
            )
        return problem

    return read_problems(path, source, counts, read)


def _problem(row: Mapping[str, Json], source: str, families: Sequence[str], where: str) -> Problem:
    if "ground_truth" in row:
        return _own_format(row, source, families, where)
    if "chosen" in row and "rejected" in row and PAIRS in families:
        truth = {name: _text(row, name, where) for name in ("chosen", "rejected")}
        return Problem.build(PAIRS, source, _prompt(row, where), truth)
    if QUESTION_FAMILY in families:
        return question_problem(row, source, where)
    raise DataError(
        f"the row is no problem of the families {', '.join(families)}",
        where=where,
        hint=f"{_FIELDS}; questions with answers are for reasoning_rl, or for SFT",
    )


def _own_format(row: Mapping[str, Json], source: str, families: Sequence[str], where: str) -> Problem:
    family = row.get("family", families[0] if len(families) == 1 else None)
    if family not in families:
        told = "the row has no family" if family is None else f"{family!r} is no family of this stage"
        raise DataError(told, where=f"{where} family", hint=f"one of {', '.join(families)}")
    truth = row["ground_truth"]
    if not isinstance(truth, dict):
        raise DataError("the ground truth is no object", where=f"{where} ground_truth")
    try:
        tools = [ToolSchema.model_validate(tool) for tool in row.get("tools") or ()]
    except (ValidationError, TypeError) as error:
        raise DataError("a tool is no schema of one", where=f"{where} tools", hint="name and parameters") from error
    return Problem.build(family, source, _prompt(row, where), truth, tools)


def _prompt(row: Mapping[str, Json], where: str) -> list[Message]:
    """The conversation up to the policy's turn: messages as our artifacts hold them, or one user's text."""
    prompt = row.get("prompt")
    if isinstance(prompt, str) and prompt.strip():
        return [Message(role="user", content=prompt.strip())]
    if not isinstance(prompt, list) or not prompt:
        raise DataError("the row has no prompt", where=f"{where} prompt", hint=_FIELDS)
    messages = []
    for index, each in enumerate(prompt):
        try:
            messages.append(Message.model_validate(each))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            raise DataError(str(first["msg"]), where=f"{where} prompt[{index}].{field}".rstrip(".")) from error
    return messages


def _text(row: Mapping[str, Json], name: str, where: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise DataError(f"the field holds a {type(value).__name__}", where=f"{where} {name}", hint="give a text")
    return value
