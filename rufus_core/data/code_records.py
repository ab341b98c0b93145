"""Records of Coding RL: what a problem asks, and the tests that grade it (CRL-D2..D4).

A problem's ground truth is one of the two models of tests below, as JSON. Fields that a model doesn't name are left
alone there, so that a problem may carry what only a reader wants to see.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rufus_core.data.text import normalised
from rufus_core.errors import DataError
from rufus_core.types import Json, Message, Problem

TEST_CHARS = 1 << 20  # of a statement: its parsed form takes hundreds of times as much memory
INPUT_CHARS = 16 << 20
OUTPUT_CHARS = 4 << 20  # OUTPUT_BYTES holds them all
OUTPUT_BYTES = 16 << 20  # that a sandbox must pass on
_STARTER, _NAMED = "Start from this code:\n\n```python\n", "Its name is `{}`."
_NAMED_LAST = re.compile(r"\n\nIts name is `[^`\n]+`\.\Z")
FAMILIES = {"functional": "python_function", "stdin_stdout": "python_program"}
SYSTEM_PROMPTS = {  # CRL-D2
    "functional": "Write what is asked for in Python, in one fenced python block. Only names are tested: read and "
    "print nothing.",
    "stdin_stdout": "Write a Python program that reads standard input and prints to standard output, in one fenced "
    "python block.",
}
ModelT = TypeVar("ModelT", bound=BaseModel)


class FaultKind(enum.StrEnum):
    MISSING = "missing"
    WRONG_TYPE = "wrong type"
    EMPTY = "empty"
    OUT_OF_RANGE = "out of range"
    TOO_LARGE = "too large"
    MISMATCH = "mismatch"  # of two fields that belong together
    NOT_PYTHON = "no Python"
    UNKNOWN = "unknown"  # a modality, a layout


class RecordFault(DataError):
    """Why a record can't be graded (CRL-D3): the row, the field and the kind of fault."""

    def __init__(self, kind: FaultKind, field: str, what: str, row: str = "") -> None:
        super().__init__(what, where=f"{row} {field}".strip() or None)
        self.kind, self.field, self.row = kind, field, row


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Case(_Strict):
    """What a program reads, and what it must print. Either may be empty, but not the outputs of all cases."""

    input: str = Field(max_length=INPUT_CHARS)
    output: str = Field(max_length=OUTPUT_CHARS)


class _Tests(_Strict):
    timeout_seconds: float | None = Field(None, gt=0, le=3600, allow_inf_nan=False)  # for each test
    memory_mib: int | None = Field(None, ge=1, le=1 << 20)


class FunctionalTests(_Tests):
    """Statements that run after the candidate's code. `entry_point` is the name that they call.

    `setup` runs before the code (imports that a solution takes for granted), `test_setup` behind it (objects of a
    candidate's class, as in MBPP).
    """

    modality: Literal["functional"]
    tests: Annotated[tuple[Annotated[str, Field(max_length=TEST_CHARS)], ...], Field(strict=False, min_length=1)]
    setup: str = Field("", max_length=TEST_CHARS)
    test_setup: str = Field("", max_length=TEST_CHARS)
    entry_point: str | None = None
    float_tolerance: None = None  # an assert says itself how close is close
    special_judge: None = None

    @field_validator("tests")
    @classmethod
    def _none_empty(cls, tests: tuple[str, ...]) -> tuple[str, ...]:
        if not all(test.strip() for test in tests):
            raise ValueError("an assert is empty")
        return tests


class ProgramTests(_Tests):
    """Inputs and outputs. `special_judge` is a Python program that decides in place of the comparison."""

    modality: Literal["stdin_stdout"]
    tests: Annotated[tuple[Case, ...], Field(strict=False, min_length=1)]
    float_tolerance: float | None = Field(None, gt=0, lt=1)
    special_judge: str | None = Field(None, min_length=1, max_length=TEST_CHARS)

    @field_validator("tests")
    @classmethod
    def _some_output(cls, tests: tuple[Case, ...]) -> tuple[Case, ...]:
        if not any(test.output.strip() for test in tests):
            raise ValueError("every output is empty")
        return tests


Tests = FunctionalTests | ProgramTests
_MODELS: dict[str, type[FunctionalTests] | type[ProgramTests]] = {
    "functional": FunctionalTests,
    "stdin_stdout": ProgramTests,
}


class CodeRecord(_Strict):
    """A coding problem as data sets give it. `row` is its place (`file:line`), `platform` in lower case."""

    statement: str = Field(min_length=1, max_length=TEST_CHARS)
    tests: Tests
    row: str = ""
    name: str = ""
    source: str = ""
    platform: str = ""
    date: datetime.date | None = None
    starter_code: str = Field("", max_length=TEST_CHARS)
    solutions: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @property
    def key(self) -> str:
        return statement_key(self.statement)

    def problem(self, source: str) -> Problem:
        """As the policy sees it: one system prompt for each modality (CRL-D2), and never the tests."""
        parts = [self.statement.strip()]
        if self.starter_code.strip():
            parts.append(f"{_STARTER}{self.starter_code.rstrip()}\n```")
        name = self.tests.entry_point if isinstance(self.tests, FunctionalTests) else None
        if name and name not in "\n".join(parts):
            parts.append(_NAMED.format(name))
        prompt = [
            Message(role="system", content=SYSTEM_PROMPTS[self.tests.modality]),
            Message(role="user", content="\n\n".join(parts)),
        ]
        truth = self.tests.model_dump(mode="json", exclude_none=True)
        kept = self.model_dump(mode="json", include={"name", "platform", "date"}, exclude_defaults=True)
        return Problem.build(FAMILIES[self.tests.modality], source, prompt, kept | truth)


def read_tests(ground_truth: Mapping[str, Json]) -> Tests:
    """The tests in a ground truth. Raises RecordFault when they can't grade anything (CRL-D3)."""
    modality = ground_truth.get("modality")
    model = _MODELS.get(modality) if isinstance(modality, str) else None
    if model is None:
        known = " or ".join(_MODELS)
        raise RecordFault(FaultKind.MISSING if modality is None else FaultKind.UNKNOWN, "modality", f"must be {known}")
    return validated(model, ground_truth)


def validated(model: type[ModelT], values: Mapping[str, Json], row: str = "") -> ModelT:
    """The values as a model. Raises RecordFault for the first that doesn't fit."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    raise RecordFault(_kind(first["type"]), field, first["msg"], row)


def statement_in(prompt: str) -> str:
    """The statement in a prompt that `CodeRecord.problem` made: without the starter code and the name behind it."""
    rest = _NAMED_LAST.sub("", prompt)
    statement, mark, _ = rest.rpartition(f"\n\n{_STARTER}")
    return statement if mark and rest.endswith("\n```") else rest


def statement_key(statement: str) -> str:
    """The deduplication key: SHA-256 of the lowercased, whitespace-normalised statement (CRL-D4)."""
    return hashlib.sha256(normalised(statement).encode("utf-8", "surrogatepass")).hexdigest()


def _kind(pydantic_type: str) -> FaultKind:
    match pydantic_type:
        case "missing":
            return FaultKind.MISSING
        case "value_error" | "too_short" | "string_too_short":
            return FaultKind.EMPTY
        case "string_too_long":
            return FaultKind.TOO_LARGE
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal" | "finite_number":
            return FaultKind.OUT_OF_RANGE
        case _:
            return FaultKind.WRONG_TYPE
