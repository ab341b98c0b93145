"""A user's file of RL problems: rows as our own artifacts hold them, preference pairs, questions with answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from rufus_core.data.code_layouts import is_code_row, record_from_row
from rufus_core.data.code_records import FAMILIES, RecordFault
from rufus_core.data.instruction_rows import instruction_problem, is_instruction_row
from rufus_core.data.preference_sets import Candidate, candidate_from_row, is_preference_row
from rufus_core.data.sources import ANSWER_FIELDS, QUESTION_FAMILY, question_problem, read_problems
from rufus_core.errors import DataError
from rufus_core.jobs.filters import SCHEMA
from rufus_core.jobs.problem_schema import problem_fault
from rufus_core.jobs.trial import trial_fault
from rufus_core.ports.programs import CodeSandbox
from rufus_core.types import Json, Message, Problem, ToolSchema

CODE_FAMILIES = frozenset(FAMILIES.values())
PAIRS = "chat"  # the family of preference pairs
_FIELDS = "expected `prompt` and `ground_truth`, and `family` where the stage has several"


def read_problem_file(
    path: Path | str,
    source: str,
    families: Sequence[str],
    counts: Counter[str] | None = None,
    on_fault: Callable[[str, str], None] | None = None,
    open_sandbox: Callable[[], CodeSandbox] | None = None,
) -> Iterator[Problem]:
    """Yield the file's rows as problems of one of `families`; the layout of each row is recognised by its fields.

    `prompt` (a text, or messages), `ground_truth`, `family` and, where there are any, `tools`: a problem, as our
    artifacts hold it; its id is made anew. Rows of public coding sets (`data/code_layouts.py`), of IFEval and IFBench
    (`data/instruction_rows.py`). `prompt`, `chosen` and `rejected`, or a row of a public preference set
    (`data/preference_sets.py`): a preference prompt; `prompt` without any answer: the same without a pair. A question
    and an answer (`question_problem`).

    Args:
        counts: gains `rows`, `problems` and `duplicates`.
        on_fault: hears the line's number and the reason for each row that can't be graded, which is left out then.
        open_sandbox: where judges and checkers that rows bring along are tried (`trial.py`). None: only read.

    Raises:
        DataError: while iterating, for a missing or empty file, a broken line, a row without usable fields, a family
            that isn't among `families`, or, without `on_fault`, a problem that its verifier can't grade.
        ConfigError, InfrastructureError, SandboxUnavailable: as `trial_fault` does, with `open_sandbox`.
    """

    def read(row: Mapping[str, Json], source: str, where: str) -> Problem | None:
        try:
            problem = _problem(row, source, families, where)
            fault = problem_fault(problem)
            if fault is None and open_sandbox is not None:
                fault = trial_fault(problem, open_sandbox)
            if fault is not None:
                raise _Ungradable(fault, where=where, hint=f"mend the row, or drop such rows with the filter {SCHEMA}")
        except (_Ungradable, RecordFault) as error:
            if on_fault is None:
                raise
            on_fault(where.rpartition(":")[2], error.what)
            return None
        return problem

    return read_problems(path, source, counts, read)


class _Ungradable(DataError):
    """A problem that its verifier can't grade."""


def _problem(row: Mapping[str, Json], source: str, families: Sequence[str], where: str) -> Problem:
    if "ground_truth" in row:
        return _own_format(row, source, families, where)
    if is_instruction_row(row):
        problem = instruction_problem(row, source, where)
        _require_family(problem.family, families, where)
        return problem
    if PAIRS in families and is_preference_row(row):
        return _preference(row, source, where)
    coding = not CODE_FAMILIES.isdisjoint(families)
    if coding and is_code_row(row):
        return record_from_row(row, where).problem(source)
    if PAIRS in families and "prompt" in row and not any(name in row for name in ANSWER_FIELDS):
        return Problem.build(PAIRS, source, _prompt(row, where), {})
    if QUESTION_FAMILY in families:
        return question_problem(row, source, where)
    if coding:
        return record_from_row(row, where).problem(source)  # tells what it lacks
    raise DataError(
        f"the row is no problem of the families {', '.join(families)}",
        where=where,
        hint=f"{_FIELDS}; questions with answers are for reasoning_rl, or for SFT",
    )


def _preference(row: Mapping[str, Json], source: str, where: str) -> Problem:
    """A preference prompt. The responses serve the analysis and the filter `validity`; no policy sees them (RM-D2)."""
    if "prompt" in row:
        given = Candidate(prompt=tuple(_prompt(row, where)), chosen=row["chosen"], rejected=row["rejected"])
    else:
        given = candidate_from_row(row, where)
    truth = {name: getattr(given, name) for name in ("chosen", "rejected")}
    return Problem.build(PAIRS, source, given.prompt, truth | ({"tie": True} if given.tie else {}))


def _require_family(family: Json, families: Sequence[str], where: str) -> None:
    if family not in families:
        told = "the row has no family" if family is None else f"{family!r} is no family of this stage"
        raise DataError(told, where=f"{where} family", hint=f"one of {', '.join(families)}")


def _own_format(row: Mapping[str, Json], source: str, families: Sequence[str], where: str) -> Problem:
    family = row.get("family", families[0] if len(families) == 1 else None)
    _require_family(family, families, where)
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
