"""Answers to be graded: a user's JSON Lines file of problems and responses, wherever the responses came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from rufus_core.data.code_layouts import is_code_row, record_from_row
from rufus_core.data.instruction_rows import instruction_problem, is_instruction_row
from rufus_core.data.jsonl import read_rows
from rufus_core.data.sources import question_problem
from rufus_core.errors import DataError
from rufus_core.types import Json, Message, Problem, VerdictKind

_FIELDS = (
    "expected `response`, and `problem`, or `family`, `ground_truth` (or `answer`) and perhaps `prompt`, or the fields"
    " of a public set"
)
_SOURCE = "file"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response to a problem. `expected` is the verdict that the file says is right, where it says one."""

    where: str
    problem: Problem
    response: str
    expected: VerdictKind | None = None


def read_answers(path: Path) -> Iterator[Answer]:
    """Rows are `{"problem": {...}, "response": "..."}` with one of our problems, or say it flat.

    Flat rows have `family`, `ground_truth` (an object; or `answer`, a short text), `response`, and `prompt` (a text or
    messages) where the verifier looks at it. A row without a family is one of a public set (IFEval's and IFBench's
    fields, those of coding problems, a question and its answer) with a `response` besides. Each may have `expected`:
    pass, fail, unscorable, aborted, true, false.

    Raises:
        DataError: while iterating: for a missing or broken file, and with line and field for a row that can't be used.
    """
    for where, row in read_rows(path):
        response = row.get("response")
        if not isinstance(response, str):
            raise DataError("the row has no text `response`", where=where, hint=_FIELDS)
        yield Answer(where, _problem(row, where), response, _expected(row, where))


def _problem(row: Mapping[str, Json], where: str) -> Problem:
    whole = row.get("problem")
    if not isinstance(whole, dict) and "family" not in row:
        return _public(row, where)
    try:
        if isinstance(whole, dict):
            return Problem.model_validate(whole)
        truth = row["ground_truth"] if "ground_truth" in row else {"answer": row["answer"]}
        prompt = row.get("prompt", "")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return Problem.build(row["family"], _SOURCE, [Message.model_validate(each) for each in messages], truth)
    except KeyError as error:
        raise DataError(f"the row has no {error.args[0]!r}", where=where, hint=_FIELDS) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise DataError(first["msg"], where=f"{where} {field}", hint=_FIELDS) from None
    except (TypeError, ValueError) as error:
        raise DataError(f"the row holds no problem: {error}", where=where, hint=_FIELDS) from None


def _public(row: Mapping[str, Json], where: str) -> Problem:
    """A row of a public set, told by its fields as in a file to train on."""
    if is_instruction_row(row):
        return instruction_problem(row, _SOURCE, where)
    if is_code_row(row):
        return record_from_row(row, where).problem(_SOURCE)
    try:
        return question_problem(row, _SOURCE, where)
    except DataError as error:
        error.hint = error.hint or _FIELDS
        raise


def _expected(row: Mapping[str, Json], where: str) -> VerdictKind | None:
    said = row.get("expected")
    if said is None:
        return None
    if isinstance(said, bool):
        return VerdictKind.PASS if said else VerdictKind.FAIL
    if said in tuple(VerdictKind):
        return VerdictKind(said)
    raise DataError(f"{said!r} is no verdict", where=f"{where} expected", hint=f"one of {', '.join(VerdictKind)}")
