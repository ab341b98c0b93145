"""Reads a user's JSON Lines file into conversations (for SFT) or into problems (for RL)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rufus_core.data.boxed import OPEN_BOX, last_boxed
from rufus_core.data.jsonl import read_rows
from rufus_core.data.layouts import Format, conversation_from_row
from rufus_core.errors import DataError
from rufus_core.types import Category, Conversation, Json, Message, Problem

QUESTION_FAMILY = "arithmetic"  # its verifier compares final answers
QUESTION_FIELDS = ("question", "problem", "prompt", "query")
ANSWER_FIELDS = ("answer", "final_answer", "expected_answer", "solution")
FINAL_ANSWER = re.compile(r"####[ \t]*(.+?)[ \t]*$", re.MULTILINE)  # GSM8K's mark before the final answer
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def read_conversations(
    path: Path | str, source: str, category: Category, format: Format = "auto", counts: Counter[str] | None = None
) -> Iterator[Conversation]:
    """Yield the file's rows as conversations; the layout of each row is recognised by its fields.

    Known layouts: `messages` (OpenAI), `conversations` (ShareGPT), and pairs such as prompt/response,
    question/answer or instruction/output. `counts` gains `rows` and `conversations`.

    Raises:
        DataError: while iterating, for a missing or empty file, a broken line or a row without usable fields.
    """
    counts = Counter() if counts is None else counts
    for where, row in read_rows(Path(path)):
        counts["rows"] += 1
        conversation = conversation_from_row(row, source, category, where, format)
        counts["conversations"] += 1
        yield conversation


def question_problem(row: Mapping[str, Json], source: str, where: str) -> Problem:
    """A row's question and answer as a problem with `ground_truth = {"answer": ...}`.

    The final answer is the text after GSM8K's `####`, else the content of the last `\\boxed{}`, else the whole
    field; commas that group thousands are removed.

    Raises:
        DataError: the row has no question, or no final answer.
    """
    _, question = _field(row, QUESTION_FIELDS, where)
    name, solution = _field(row, ANSWER_FIELDS, where)
    answer = final_answer(solution)
    if not answer:
        raise DataError("the field has no final answer", where=f"{where} {name}", hint="end it with `#### ANSWER`")
    return Problem.build(QUESTION_FAMILY, source, [Message(role="user", content=question)], {"answer": answer})


def read_problems(
    path: Path | str,
    source: str,
    counts: Counter[str] | None = None,
    read: Callable[[Mapping[str, Json], str, str], Problem | None] = question_problem,
) -> Iterator[Problem]:
    """Yield the file's rows as problems. A problem seen before is skipped.

    Args:
        counts: gains `rows`, `problems` and `duplicates`.
        read: makes a problem of a row, the source's name and the row's place; None leaves the row out.

    Raises:
        DataError: while iterating, as for `read_conversations`.
    """
    counts = Counter() if counts is None else counts
    seen: set[str] = set()
    for where, row in read_rows(Path(path)):
        counts["rows"] += 1
        problem = read(row, source, where)
        if problem is None:
            continue
        if problem.id in seen:
            counts["duplicates"] += 1
            continue
        seen.add(problem.id)
        counts["problems"] += 1
        yield problem


def final_answer(text: str) -> str:
    """The short final answer in a reference answer or solution; empty when a marked answer is empty or unterminated."""
    marked = FINAL_ANSWER.findall(text)
    if marked:
        answer = marked[-1]
    elif OPEN_BOX.search(text):
        answer = last_boxed(text) or ""
    else:
        answer = text
    return THOUSANDS.sub("", answer.strip())


def _field(row: Mapping[str, Json], names: tuple[str, ...], where: str) -> tuple[str, str]:
    """The first of the fields that is there: its name and its text."""
    for name in names:
        value = row.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and value.strip():
            return name, value.strip()
        if value not in (None, ""):
            raise DataError(f"the field holds a {type(value).__name__}", where=f"{where} {name}", hint="give a text")
    expected = ", ".join(f"`{name}`" for name in names)
    raise DataError("the row has no usable fields", where=where, hint=f"expected one of {expected}")
