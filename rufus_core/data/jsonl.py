"""Reads JSON Lines files (plain or gzipped) and says exactly where one is broken."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn, cast

from rufus_core.errors import DataError
from rufus_core.types import Json

ONE_OBJECT_PER_LINE = "the file must hold one JSON object per line"


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yield (`file:line`, object) for every line that isn't blank.

    Raises:
        DataError: the file is missing, empty or unreadable, or a line isn't a JSON object.
    """
    path = path.expanduser()
    found = False
    try:
        if not path.is_file():
            raise DataError("there is no such file", where=str(path), hint="give the path of a .jsonl file")
        with _open(path) as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{path}:{number}"
                text = _decoded(line, where)
                if text:
                    found = True
                    yield where, _parse(text, where)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"the file can't be read: {error}", where=str(path)) from error
    if not found:
        raise DataError("the file is empty", where=str(path), hint=ONE_OBJECT_PER_LINE)


def _open(path: Path) -> IO[bytes]:
    """In bytes: text is decoded in blocks, and what is wrong with a block doesn't tell the line."""
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise DataError("the text isn't UTF-8", where=where, hint="save the file as UTF-8") from error


def _parse(line: str, where: str) -> dict[str, Json]:
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half of an escaped surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise DataError(f"the line isn't valid JSON: {_fault(error)}", where=where, hint=ONE_OBJECT_PER_LINE) from error
    if not isinstance(row, dict):
        raise DataError(f"the line holds a {type(row).__name__}", where=where, hint=ONE_OBJECT_PER_LINE)
    return row


def _fault(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"{error.msg} at character {error.pos + 1}"
        case RecursionError():
            return "nested too deeply"
        case _:
            return str(error)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
