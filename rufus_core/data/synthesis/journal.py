"""What is finished, one JSON line each, so that a run that ended early isn't asked for again."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from pydantic import ValidationError

from rufus_core.data.jsonl import read_rows
from rufus_core.data.synthesis.dialogue import Entry, Failure
from rufus_core.errors import DataError

EntryT = TypeVar("EntryT", bound=Entry)


class Journal(Generic[EntryT]):
    """`finished` holds what the file has, by id. Writing is safe from several threads; one process has the file.

    A failure is written too, for whoever reads the file, and asked for again. A last line that was cut off is removed.

    Args:
        kind: of the entries; its name in small letters stands before each in the file.

    Raises:
        DataError: a line can't be read, or another process has the file.
    """

    def __init__(self, path: Path, kind: type[EntryT]) -> None:
        self._path, self._kind, self._lock = path, kind, threading.Lock()
        self._name = kind.__name__.lower()
        self.finished: dict[str, EntryT] = {}

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            hint = "wait for it, or write another file"
            raise DataError("another process is writing this", where=str(self._path), hint=hint) from error
        self._file.seek(0)
        self._file.truncate(self._file.read().rfind(b"\n") + 1)
        if self._path.stat().st_size:
            self._read()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._file.close()

    def keep(self, outcome: EntryT | Failure) -> None:
        name = "failure" if isinstance(outcome, Failure) else self._name
        line = f'{{"{name}":{outcome.model_dump_json()}}}\n'.encode()
        with self._lock:
            self._file.write(line)
            self._file.flush()

    def _read(self) -> None:
        for where, row in read_rows(self._path):
            if self._name not in row:
                continue
            try:
                entry = self._kind.model_validate(row[self._name])
            except ValidationError as error:
                raise DataError(f"this is no {self._name}: {error.errors()[0]['msg']}", where=where) from error
            self.finished[entry.id] = entry
