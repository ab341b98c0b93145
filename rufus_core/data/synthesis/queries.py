"""Reads the requests that synthesis begins with: rows of a user's file, each a query and perhaps who asks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rufus_core.data.jsonl import read_rows
from rufus_core.data.synthesis.dialogue import Query
from rufus_core.errors import DataError
from rufus_core.types import Json

FIELDS = ("query", "prompt", "question", "instruction")


def load_queries(path: Path) -> tuple[Query, ...]:
    """The file's queries in order, equal ones once.

    A row has its query in one of `FIELDS`, or is a conversation (`messages`) whose first user turn is taken; `persona`
    beside it says in words who asks.

    Raises:
        DataError: the file can't be read, or a row holds no query.
    """
    return tuple(dict.fromkeys(_query(row, where) for where, row in read_rows(path)))


def _query(row: Mapping[str, Json], where: str) -> Query:
    texts = [row[name] for name in FIELDS if name in row] or _first_user_turns(row.get("messages"))
    if not texts or not isinstance(texts[0], str) or not texts[0].strip():
        raise DataError("the row holds no query", where=where, hint=f"a text as one of {', '.join(FIELDS)}")
    persona = row.get("persona", "")
    if not isinstance(persona, str):
        raise DataError("the persona is no text", where=f"{where} persona")
    return Query(query=texts[0].strip(), persona=persona.strip())


def _first_user_turns(messages: Json) -> list[Json]:
    if not isinstance(messages, list):
        return []
    return [each.get("content") for each in messages if isinstance(each, dict) and each.get("role") == "user"]
