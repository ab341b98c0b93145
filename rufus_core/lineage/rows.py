"""Rows of data sets: which were added, removed and changed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from rufus_core.errors import LineageError
from rufus_core.types import Frozen, Json

NUM_EXAMPLES = 3
MAX_TEXT = 160  # characters of an example's text


class RowExample(Frozen):
    file: str
    id: str
    source: str
    text: str


class FileRows(Frozen):
    """Counts of one file's rows (a split). `by_source` counts added, removed and changed rows of each source."""

    file: str
    num_old: int
    num_new: int
    added: int
    removed: int
    changed: int
    by_source: dict[str, tuple[int, int, int]]


class RowChanges(Frozen):
    """`examples` are of each kind the first few, by file and id."""

    files: tuple[FileRows, ...]
    added: tuple[RowExample, ...]
    removed: tuple[RowExample, ...]
    changed: tuple[RowExample, ...]


Key = tuple[str, int]  # a row's id, and which of the rows with this id it is


def row_changes(old: Mapping[str, Path], new: Mapping[str, Path]) -> RowChanges:
    """Compare data sets of JSON Lines, file by file.

    A row is known by its `id`. Without one it is known by its content, so that a changed row is one removed and one
    added.

    Raises:
        LineageError: a file can't be read or holds a line that is no JSON object.
    """
    files, examples = [], {"added": list[RowExample](), "removed": list[RowExample](), "changed": list[RowExample]()}
    for name in sorted(old.keys() | new.keys()):
        before, after = _rows(old.get(name)), _rows(new.get(name))
        kinds = {
            "added": sorted(after.keys() - before.keys()),
            "removed": sorted(before.keys() - after.keys()),
            "changed": sorted(key for key in before.keys() & after.keys() if before[key] != after[key]),
        }
        sources = {
            kind: Counter(_source(after.get(key) or before[key]) for key in keys) for kind, keys in kinds.items()
        }
        files.append(
            FileRows(
                file=name,
                num_old=len(before),
                num_new=len(after),
                **{kind: len(keys) for kind, keys in kinds.items()},
                by_source={
                    source: (sources["added"][source], sources["removed"][source], sources["changed"][source])
                    for source in sorted(set().union(*sources.values()))
                },
            )
        )
        for kind, keys in kinds.items():
            rows = before if kind == "removed" else after
            examples[kind] += (_example(name, key, rows[key]) for key in keys[:NUM_EXAMPLES])
    return RowChanges(files=tuple(files), **{kind: tuple(some[:NUM_EXAMPLES]) for kind, some in examples.items()})


def _rows(path: Path | None) -> dict[Key, dict[str, Json]]:
    if path is None:
        return {}
    rows: dict[Key, dict[str, Json]] = {}
    seen: Counter[str] = Counter()
    for number, line in enumerate(_lines(path), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise LineageError("this line is no JSON object", where=f"{path}:{number}", hint="rufus trace names damage")
        given = row.get("id")
        key = given if isinstance(given, str) else hashlib.sha256(line).hexdigest()[:16]
        seen[key] += 1
        rows[key, seen[key]] = row
    return rows


def _lines(path: Path) -> Iterable[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise LineageError(f"can't read this data: {error.strerror}", where=str(path)) from error


def _source(row: Mapping[str, Json]) -> str:
    return str(row.get("source", ""))


def _example(file: str, key: Key, row: Mapping[str, Json]) -> RowExample:
    """A row by the last thing that the user says in it."""
    messages = row.get("prompt") or row.get("messages")
    said = (
        [m.get("content") for m in messages if isinstance(m, dict) and m.get("role") == "user"]
        if isinstance(messages, list)
        else []
    )
    text = str(said[-1]) if said else json.dumps(row, ensure_ascii=False)
    return RowExample(file=file, id=key[0], source=_source(row), text=text[:MAX_TEXT])
