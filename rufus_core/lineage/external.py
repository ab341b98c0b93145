"""Data files of the user's, which a step reads where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rufus_core.errors import DataError
from rufus_core.lineage.digest import FileEntry, hash_file
from rufus_core.lineage.record import ExternalFile

ExternalStatus = Literal["intact", "missing", "unreadable", "changed"]


def external_file(path: str, rows: int | None = None) -> ExternalFile:
    """What a data file is now. `rows` is its number of records, where the reader counted them.

    Raises:
        DataError: it can't be read.
    """
    place = Path(path).expanduser()
    if place.exists() and not place.is_file():  # a pipe would be waited for
        raise DataError("this is no file", where=path)
    try:
        entry = hash_file(place)
    except OSError as error:
        raise DataError(f"can't read this data file: {error.strerror}", where=path) from error
    return ExternalFile(path=path, resolved=str(place.absolute()), sha256=entry.sha256, size=entry.size, rows=rows)


def unchanged_file(path: str, sha256: str | None, rows: int | None = None) -> ExternalFile:
    """A data file that a step has read, if it is still the one that the step's identity names by its hash.

    Raises:
        DataError: it changed, or can't be read.
    """
    file = external_file(path, rows)
    if file.sha256 != sha256:
        raise DataError("this file changed after the run had started", where=path, hint="run the same command again")
    return file


def find_external(recorded: ExternalFile) -> Path | None:
    """Where the file lies today: at its absolute path, else at the path as given from here; None for nowhere."""
    places = (Path(recorded.resolved), Path(recorded.path).expanduser())
    return next((place for place in places if place.is_file()), None)


def external_state(recorded: ExternalFile) -> tuple[ExternalStatus, str, FileEntry | None]:
    """How the file is today against what was recorded; that in words, none where it is intact; and what was found."""
    place = find_external(recorded)
    if place is None:
        return "missing", "this data file is gone", None
    try:
        found = hash_file(place)
    except OSError as error:
        return "unreadable", f"can't read this data file: {error.strerror}", None
    if found.sha256 != recorded.sha256:
        return "changed", "this data file changed since it was read", found
    return "intact", "", found
