"""Reads JSON Lines files (plain or gzipped) and says exactly where one is broken."""

from __future__ import annotations

import gzip
import json
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
    if not path.is_file():
        raise DataError("there is no such file", where=str(path), hint="give the path of a .jsonl file")
    found = False
    number = 0
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    found = True
                    where = f"{path}:{number}"
                    yield where, _parse(line, where)
    except UnicodeDecodeError as error:
        raise DataError("the text isn't UTF-8", where=f"{path}:{number + 1}", hint="save the file as UTF-8") from error
    except (OSError, EOFError) as error:
        raise DataError(f"the file can't be read: {error}", where=str(path)) from error
    if not found:
        raise DataError("the file is empty", where=str(path), hint=ONE_OBJECT_PER_LINE)


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, "rt", encoding="utf-8-sig"))
    return path.open(encoding="utf-8-sig")


def _parse(line: str, where: str) -> dict[str, Json]:
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half of an escaped surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise DataError(f"the line isn't valid JSON: {error}", where=where, hint=ONE_OBJECT_PER_LINE) from error
    if not isinstance(row, dict):
        raise DataError(f"the line holds a {type(row).__name__}", where=where, hint=ONE_OBJECT_PER_LINE)
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
