"""Data files of the user's, which a step reads where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from rufus_core.errors import DataError, LineageError
from rufus_core.lineage.digest import FileEntry, hash_file
from rufus_core.lineage.record import ExternalFile


class ExternalState(NamedTuple):
    """How a data file is found; `what` is that in words, none where it is intact."""

    status: Literal["intact", "missing", "unreadable", "changed"]
    what: str
    place: Path | None = None
    entry: FileEntry | None = None


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


def external_state(recorded: ExternalFile) -> ExternalState:
    """How the file is today against what was recorded."""
    place = None
    try:
        place = find_external(recorded)
        if place is None:
            return ExternalState("missing", "this data file is gone")
        found = hash_file(place)
    except OSError as error:
        return ExternalState("unreadable", f"can't read this data file: {error.strerror}", place)
    if found.sha256 != recorded.sha256:
        return ExternalState("changed", "this data file changed since it was read", place, found)
    return ExternalState("intact", "", place, found)


def intact_external(recorded: ExternalFile) -> Path:
    """Where the file lies today. Raises LineageError when it isn't what was recorded."""
    state = external_state(recorded)
    if state.status != "intact" or state.place is None:
        hint = f"put back the file of sha256 {recorded.sha256[:12]}"
        raise LineageError(state.what, where=recorded.path, hint=hint)
    return state.place
