"""The note beside a record without some of its bytes: what isn't here on purpose, and since when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from rufus_core.errors import LineageError
from rufus_core.lineage.digest import COLLECTED_FILE, FileChange
from rufus_core.lineage.record import dump_sealed, seal_of
from rufus_core.types import Frozen


class Collected(Frozen):
    files: tuple[str, ...]  # paths inside the artifact
    when: datetime
    elsewhere: bool = False  # never here: the record came from a shared root, which has the bytes


def dump_collected(collected: Collected) -> str:
    return dump_sealed(json.loads(collected.model_dump_json()))


def read_collected(folder: Path) -> Collected | None:
    """The note in an artifact's folder; None where nothing was collected.

    Raises:
        LineageError: it can't be read, or was altered after it was written.
    """
    file = folder / COLLECTED_FILE
    if not file.exists():
        return None
    try:
        content = json.loads(file.read_bytes())
        if content.pop("seal") == seal_of(content):
            return Collected.model_validate(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, LineageError, ValidationError) as error:
        raise LineageError("this note of what was collected can't be read", where=str(file), hint=_AGAIN) from error
    raise LineageError("this note of what was collected was altered", where=str(file), hint=_AGAIN)


def unexplained(note: Collected | None, changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
    """Those changes of an artifact that its note doesn't explain."""
    gone = set(note.files) if note else set()
    return tuple(change for change in changes if change.change != "missing" or change.path not in gone)


_AGAIN = "delete it: `rufus run` then makes the artifact again when it is needed"
