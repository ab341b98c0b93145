"""Reads public preference sets (RM-D1): HH-RLHF, HelpSteer3 and Arena Human Preference, one JSON object a line.

Layouts by their fields, as the sets' own pages describe them:

- HH-RLHF: `chosen` and `rejected`, whole transcripts of `\\n\\nHuman: ...\\n\\nAssistant: ...`;
- HelpSteer3: `context` (messages), `response1`, `response2` and `overall_preference` from -3 (the first is much better)
  to 3; 0 is a tie;
- Arena Human Preference: `conversation_a`, `conversation_b` (messages, whose content is a text or parts) and `winner`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rufus_core.data.jsonl import read_rows
from rufus_core.errors import DataError
from rufus_core.types import Frozen, Json, Message, Problem

_SPEAKER = re.compile(r"\n\n(Human|Assistant): ?")
_ROLES = {"Human": "user", "Assistant": "assistant"}
_WINNERS = {"model_a": True, "model_b": False}


class Candidate(Frozen):
    """One row as it is, valid or not. A response is None where it is missing; `tie`: neither was preferred."""

    prompt: tuple[Message, ...]
    chosen: str | None
    rejected: str | None
    tie: bool = False


def read_candidates(path: Path) -> Iterator[Candidate]:
    """Every row of the file. Raises DataError for a broken line and for a row of no known layout."""
    for where, row in read_rows(path):
        yield candidate_from_row(row, where)


def candidate_from_row(row: Mapping[str, Json], where: str) -> Candidate:
    """Raises DataError for a row of no known layout."""
    for fields, read in _LAYOUTS:
        if all(name in row for name in fields):
            try:
                return read(row)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                told = str(error).splitlines()[0]
                raise DataError(f"the row can't be read as {' and '.join(fields)}: {told}", where=where) from error
    known = "; ".join(", ".join(f"`{name}`" for name in fields) for fields, _ in _LAYOUTS)
    raise DataError("the row is of no known preference set", where=where, hint=f"known fields: {known}")


def candidate_of(problem: Problem) -> Candidate | None:
    """The pair that a preference prompt keeps in its ground truth; None for a problem without one."""
    truth = problem.ground_truth
    if not {"chosen", "rejected"} & truth.keys():
        return None
    pair = {name: truth.get(name) for name in ("chosen", "rejected")}
    return Candidate(prompt=problem.prompt, **pair, tie=bool(truth.get("tie")))


def is_preference_row(row: Mapping[str, Json]) -> bool:
    """Whether `candidate_from_row` knows the row's layout."""
    return any(all(name in row for name in fields) for fields, _ in _LAYOUTS)


def _hh_rlhf(row: Mapping[str, Json]) -> Candidate:
    chosen, rejected = _transcript(row["chosen"]), _transcript(row["rejected"])
    prompt, answer = _cut(chosen)
    other_prompt, other = _cut(rejected)
    return Candidate(prompt=prompt, chosen=answer, rejected=other if other_prompt == prompt else None)


def _transcript(text: str) -> list[Message]:
    _, *parts = _SPEAKER.split(text)
    turns = zip(parts[::2], parts[1::2], strict=True)
    return [Message.model_validate({"role": _ROLES[who], "content": said.strip()}) for who, said in turns]


def _helpsteer3(row: Mapping[str, Json]) -> Candidate:
    first, second, preference = row["response1"], row["response2"], int(row["overall_preference"])
    chosen, rejected = (first, second) if preference <= 0 else (second, first)
    prompt = tuple(_message(message) for message in row["context"])
    return Candidate(prompt=prompt, chosen=chosen, rejected=rejected, tie=preference == 0)


def _arena(row: Mapping[str, Json]) -> Candidate:
    (prompt, first), (_, second) = (
        _cut([_message(message) for message in row[name] or ()]) for name in ("conversation_a", "conversation_b")
    )
    chosen, rejected = (first, second) if _WINNERS.get(row["winner"], True) else (second, first)
    return Candidate(prompt=prompt, chosen=chosen, rejected=rejected, tie=row["winner"] not in _WINNERS)


def _cut(messages: list[Message]) -> tuple[tuple[Message, ...], str | None]:
    """The prompt and the response, which is the last message if an assistant said it."""
    if messages and messages[-1].role == "assistant":
        return tuple(messages[:-1]), messages[-1].content
    return tuple(messages), None


def _message(message: Mapping[str, Json]) -> Message:
    content = message["content"]
    if isinstance(content, list):  # of parts, of which pictures have no text
        content = "".join(part.get("text") or "" for part in content)
    return Message.model_validate({"role": message["role"], "content": content or ""})


_LAYOUTS: tuple[tuple[tuple[str, ...], Callable[[Mapping[str, Json]], Candidate]], ...] = (
    (("context", "response1", "response2", "overall_preference"), _helpsteer3),
    (("conversation_a", "conversation_b", "winner"), _arena),
    (("chosen", "rejected"), _hh_rlhf),
)
