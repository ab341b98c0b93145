"""Dialogues that are finished, one JSON line each, so that a run that ended early isn't asked for again."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from rufus_core.data.jsonl import read_rows
from rufus_core.data.synthesis.dialogue import Dialogue, Failure
from rufus_core.errors import DataError


class Journal:
    """`finished` holds what the file has, by id. Writing is safe from several threads; one process has the file.

    A failure is written too, for whoever reads the file, and asked for again. A last line that was cut off is removed.

    Raises:
        DataError: a line can't be read.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self.finished: dict[str, Dialogue] = {}

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a+b")
        self._file.seek(0)
        self._file.truncate(self._file.read().rfind(b"\n") + 1)
        if self._path.stat().st_size:
            for where, row in read_rows(self._path):
                if "dialogue" not in row:
                    continue
                try:
                    dialogue = Dialogue.model_validate(row["dialogue"])
                except ValidationError as error:
                    raise DataError(f"this is no dialogue: {error.errors()[0]['msg']}", where=where) from error
                self.finished[dialogue.id] = dialogue
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def keep(self, outcome: Dialogue | Failure) -> None:
        name = "dialogue" if isinstance(outcome, Dialogue) else "failure"
        line = f'{{"{name}":{outcome.model_dump_json()}}}\n'.encode()
        with self._lock:
            self._file.write(line)
            self._file.flush()
