"""Aliases: names that move from checkpoint to checkpoint, such as `sft` and `rufus-air`.

`aliases.jsonl` in the store's folder only grows: a line for each time that a name came to mean another checkpoint.
"""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from rufus_core.errors import LineageError
from rufus_core.lineage.files import told_plainly
from rufus_core.lineage.record import Record
from rufus_core.types import Frozen

FILE = "aliases.jsonl"


class Pointer(Frozen):
    """What an alias means from `when` on. `registered` is the model that it is an alias of in MLflow."""

    alias: str
    record_id: str
    digest: str
    registered: str
    when: datetime
    why: str


class Aliases:
    """The aliases of a store. Several processes may use them at once."""

    def __init__(self, root: Path) -> None:
        self._file = root / FILE

    def history(self) -> list[Pointer]:
        """Every move, oldest first. Raises LineageError, naming the line that can't be read."""
        with told_plainly("read the aliases", self._file):
            text = self._file.read_text() if self._file.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a line that a crash cut short never counted
        return [self._pointer(line, number) for number, line in enumerate(whole.splitlines(), 1) if line]

    def current(self) -> dict[str, Pointer]:
        return {pointer.alias: pointer for pointer in self.history()}

    def find(self, text: str) -> Pointer | None:
        """What `sft` or `rufus-air@sft` means; None if it is no alias."""
        registered, _, alias = text.rpartition("@")
        pointer = self.current().get(alias)
        return pointer if pointer and registered in ("", pointer.registered) else None

    def point(self, alias: str, record: Record, registered: str, why: str) -> bool:
        """Let an alias mean this checkpoint; False if it does already."""
        with told_plainly("write the aliases", self._file), self._file.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            now = self.current().get(alias)
            if now is not None and (now.digest, now.record_id) == (record.digest, record.id):
                return False
            self._drop_cut_line(file.fileno())
            moved = Pointer(
                alias=alias,
                record_id=record.id,
                digest=record.digest,
                registered=registered,
                when=datetime.now(UTC),
                why=why,
            )
            file.write(moved.model_dump_json() + "\n")
            file.flush()
            os.fsync(file.fileno())
        return True

    def _drop_cut_line(self, handle: int) -> None:
        content = self._file.read_bytes()
        os.ftruncate(handle, content.rfind(b"\n") + 1)

    def _pointer(self, line: str, number: int) -> Pointer:
        try:
            return Pointer.model_validate_json(line)
        except ValidationError as error:
            raise LineageError(
                "this line is no alias",
                where=f"{self._file}:{number}",
                hint="take the line out; the next run writes it",
            ) from error
