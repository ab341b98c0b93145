"""Reads rows of public coding data sets as records. A row that can't be graded becomes a fault, never an exception.

| layout | told by | from |
|---|---|---|
| own | `modality` | `CodeRecord` as JSON: the fields of its tests stand beside `statement` |
| NeMo Gym | `verifier_metadata` | code_gen |
| LiveCodeBench | `question_content` | code_generation_lite; also its few-shot rows |
| MBPP | `test_list` | |
| HumanEval | `canonical_solution` | |
| NeMo-Skills | `test_cases` | |
| TACO, APPS | `input_output` | also with `inputs`, `outputs` and `fn_name` in the row itself |
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rufus_core.data.code_records import (
    CodeRecord,
    FaultKind,
    FunctionalTests,
    RecordFault,
    read_tests,
    validated,
)
from rufus_core.data.code_tests import (
    asserts_of_calls,
    asserts_of_check,
    before_function,
    called_name,
    packed_cases,
    parsed,
)
from rufus_core.data.jsonl import read_rows
from rufus_core.types import Json

Row = Mapping[str, Json]
STATEMENT_FIELDS = ("statement", "question_content", "question", "description", "problem", "text", "prompt")
_PLATFORMS = ("leetcode", "atcoder", "codeforces", "codechef", "codewars", "hackerrank", "hackerearth", "geeksforgeeks")
_END_OF_INSTRUCTIONS = "# Your code here\n```"  # NeMo Gym puts its own request before every statement
_NEVER_TEXT = ("statement", "starter_code", "name", "source")


@dataclass(frozen=True, slots=True)
class _Layout:
    mark: str  # the field that tells it
    tests_field: str  # what a fault of a test is called after
    read: Callable[[Row], dict[str, Json]]  # fields of a record; `tests` is a ground truth


def read_code_records(path: Path) -> Iterator[CodeRecord | RecordFault]:
    """Each row of a file as a record, or as the fault for which it is dropped (CRL-D3).

    Raises DataError for a file that can't be read, or a line that holds no JSON object.
    """
    for where, row in read_rows(path):
        try:
            yield record_from_row(row, where)
        except RecordFault as fault:
            yield fault


def record_from_row(row: Row, where: str = "") -> CodeRecord:
    """Raises RecordFault, which names the field as the row does."""
    layout = next((layout for layout in _LAYOUTS if layout.mark in row), None)
    try:
        if layout is None:
            marks = ", ".join(f"`{layout.mark}`" for layout in _LAYOUTS)
            raise RecordFault(FaultKind.UNKNOWN, "", f"no known layout: none of {marks} is there")
        fields = {**_common(row), **layout.read(row)}
        fields["tests"] = read_tests(fields["tests"])
        record = validated(CodeRecord, {**fields, "row": where})
        if isinstance(record.tests, FunctionalTests):
            parsed(record.tests.setup, "setup")
            parsed(record.tests.test_setup, "test_setup")
            for index, test in enumerate(record.tests.tests):
                parsed(test, f"tests[{index}]")
        return record
    except RecordFault as fault:
        field = fault.field
        if layout and field.startswith("tests"):
            field = layout.tests_field + field.removeprefix("tests")
        raise RecordFault(fault.kind, field, fault.what, where) from None


def is_code_row(row: Row) -> bool:
    """Whether `record_from_row` knows the row's layout."""
    return any(layout.mark in row for layout in _LAYOUTS)


def statement_of(row: Row) -> str:
    """What a row asks, by the first field that holds a text. Raises RecordFault."""
    for name in STATEMENT_FIELDS:
        if isinstance(value := row.get(name), str) and value.strip():
            return value
    held = next((name for name in STATEMENT_FIELDS if name in row), "")
    kind = FaultKind.WRONG_TYPE if held and not isinstance(row[held], str) else FaultKind.MISSING
    raise RecordFault(kind, held, "the row has no statement")


def platform_of(row: Row) -> str:
    """The platform that a row names in `platform`, `source`, `url` or `dataset`; else what `platform` says."""
    texts = [str(row.get(name) or "").lower() for name in ("platform", "source", "url", "dataset")]
    named = next((name for text in texts for name in _PLATFORMS if name in text.replace(" ", "")), "")
    return named or texts[0]


def date_of(row: Row) -> datetime.date | None:
    """Raises RecordFault for a date that is no ISO date."""
    for name in ("date", "contest_date"):
        if (value := row.get(name)) in (None, ""):
            continue
        try:
            return datetime.date.fromisoformat(str(value)[:10])
        except ValueError as error:
            raise RecordFault(FaultKind.OUT_OF_RANGE, name, f"is no date: {error}") from error
    return None


def _common(row: Row) -> dict[str, Json]:
    fields: dict[str, Json] = {"platform": platform_of(row), "date": date_of(row)}
    fields |= {name: row[name] for name in ("source", "starter_code") if row.get(name) is not None}
    for name in ("name", "id", "question_id", "task_id", "hash_id"):
        if isinstance(value := row.get(name), str | int):
            fields["name"] = str(value)
            break
    return fields


def _own(row: Row) -> dict[str, Json]:
    solutions = row.get("solutions") or ()
    return {"statement": statement_of(row), "tests": dict(row), "solutions": solutions}


def _nemo_gym(row: Row) -> dict[str, Json]:
    turns = _object(row.get("responses_create_params"), "responses_create_params").get("input")
    last = turns[-1] if isinstance(turns, list) and turns else None
    text = last.get("content") if isinstance(last, dict) else turns
    if not isinstance(text, str):
        raise RecordFault(FaultKind.MISSING, "responses_create_params.input", "the row has no user message")
    statement = text.partition(_END_OF_INSTRUCTIONS)[2] or text
    unit_tests = _object(_object(row["verifier_metadata"], "verifier_metadata").get("unit_tests"), "unit_tests")
    return {"statement": statement.strip(), "tests": _usual(unit_tests, statement)}


def _livecodebench(row: Row) -> dict[str, Json]:
    cases = [
        case
        for name in ("public_test_cases", "private_test_cases")
        for case in _list(packed_cases(row.get(name) or "[]", name), name)
    ]
    name = _object(row.get("metadata") or {}, "metadata").get("func_name")
    starter = row.get("starter_code") or ""
    usual = {"inputs": [_field(c, "input") for c in cases], "outputs": [_field(c, "output") for c in cases]}
    return {
        "statement": statement_of(row),
        "tests": _usual(usual | ({"fn_name": name} if name and starter else {}), f"{starter}"),
    }


def _mbpp(row: Row) -> dict[str, Json]:
    tests = row["test_list"]
    imports = _list(row.get("test_imports") or [], "test_imports")
    truth = {
        "modality": "functional",
        "tests": tests,
        "setup": "\n".join(map(str, imports)),
        "test_setup": row.get("test_setup_code") or "",
        "entry_point": called_name(tests),
    }
    return {"statement": statement_of(row), "tests": truth, "solutions": _solution(row, "code")}


def _humaneval(row: Row) -> dict[str, Json]:
    prompt, name = row.get("prompt"), row.get("entry_point")
    if not isinstance(prompt, str) or not isinstance(name, str) or not isinstance(row.get("test"), str):
        missing = next(n for n in ("prompt", "entry_point", "test") if not isinstance(row.get(n), str))
        raise RecordFault(FaultKind.MISSING if missing not in row else FaultKind.WRONG_TYPE, missing, "must be a text")
    truth = {
        "modality": "functional",
        "tests": asserts_of_check(row["test"], name),
        "setup": before_function(prompt, name),
        "entry_point": name,
    }
    solution = prompt + str(row["canonical_solution"])
    return {"statement": prompt, "tests": truth, "solutions": [solution]}


def _nemo_skills(row: Row) -> dict[str, Json]:
    truth = {"modality": "stdin_stdout", "tests": row["test_cases"]}
    right = row.get("is_correct") is True
    return {"statement": statement_of(row), "tests": truth, "solutions": _solution(row, "code") if right else []}


def _taco(row: Row) -> dict[str, Json]:
    statement = statement_of(row)
    given = _object(row["input_output"], "input_output")
    return {"statement": statement, "tests": _usual(given, f"{statement}\n{row.get('starter_code') or ''}")}


def _bare(row: Row) -> dict[str, Json]:
    statement = statement_of(row)
    return {"statement": statement, "tests": _usual(row, f"{statement}\n{row.get('starter_code') or ''}")}


def _usual(given: Row, code: str) -> dict[str, Json]:
    """`{"inputs": [...], "outputs": [...], "fn_name": ...}` as a ground truth."""
    inputs, outputs, name = given.get("inputs"), given.get("outputs"), given.get("fn_name")
    for field, value in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(value, list):
            kind = FaultKind.MISSING if value is None else FaultKind.WRONG_TYPE
            raise RecordFault(kind, f"tests.{field}", "must be a list")
    assert isinstance(inputs, list)
    assert isinstance(outputs, list)
    if len(inputs) != len(outputs):
        what = f"{len(inputs)} inputs and {len(outputs)} outputs"
        raise RecordFault(FaultKind.MISMATCH, "tests.outputs", what)
    options = {name: given[name] for name in ("timeout_seconds", "memory_mib") if given.get(name) is not None}
    if name in (None, ""):
        options |= {name: given[name] for name in ("float_tolerance", "special_judge") if given.get(name) is not None}
        pairs = [{"input": _text(i), "output": _text(o)} for i, o in zip(inputs, outputs, strict=True)]
        return {"modality": "stdin_stdout", "tests": pairs, **options}
    if not isinstance(name, str) or not name.isidentifier():
        raise RecordFault(FaultKind.WRONG_TYPE, "tests.fn_name", "is no name")
    tests, setup = asserts_of_calls(name, inputs, outputs, in_solution="class Solution" in code)
    return {"modality": "functional", "tests": tests, "setup": setup, "entry_point": name, **options}


def _text(value: Json) -> Json:
    """Some data sets keep an input or an output as a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value


def _object(value: Json, field: str) -> dict[str, Json]:
    """An object, or the JSON text of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RecordFault(FaultKind.WRONG_TYPE, field, f"is no JSON: {error}") from error
    if not isinstance(value, dict):
        kind = FaultKind.MISSING if value is None else FaultKind.WRONG_TYPE
        raise RecordFault(kind, field, "must be an object")
    return value


def _list(value: Json, field: str) -> list[Json]:
    if not isinstance(value, list):
        raise RecordFault(FaultKind.WRONG_TYPE, field, "must be a list")
    return value


def _field(case: Json, name: str) -> Json:
    if not isinstance(case, dict) or name not in case:
        raise RecordFault(FaultKind.MISSING, f"tests.{name}", "a test case lacks it")
    return case[name]


def _solution(row: Row, name: str) -> list[str]:
    return [row[name]] if isinstance(row.get(name), str) else []


_LAYOUTS = (
    _Layout("modality", "tests", _own),
    _Layout("verifier_metadata", "verifier_metadata.unit_tests", _nemo_gym),
    _Layout("question_content", "test_cases", _livecodebench),
    _Layout("test_list", "test_list", _mbpp),
    _Layout("canonical_solution", "test", _humaneval),
    _Layout("test_cases", "test_cases", _nemo_skills),
    _Layout("input_output", "input_output", _taco),
    _Layout("inputs", "", _bare),
)
