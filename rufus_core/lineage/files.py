"""Writing that survives a crash, and OS errors in a user's words."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rufus_core.errors import LineageError

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space and run the same command again; nothing published is lost",
    errno.EDQUOT: "your quota is used up: free some space and run the same command again; nothing published is lost",
    errno.EROFS: "the file system is read-only: choose another home with --home or RUFUS_HOME",
    errno.EACCES: "permission denied: change the folder's owner, or choose another home with --home or RUFUS_HOME",
    errno.EPERM: "permission denied: change the folder's owner, or choose another home with --home or RUFUS_HOME",
    errno.ENAMETOOLONG: "the name is longer than the file system takes: choose a shorter one",
    errno.ENOTDIR: "a file is in the place of a folder: choose another home with --home or RUFUS_HOME",
    errno.EEXIST: "a file is in the place of a folder: choose another home with --home or RUFUS_HOME",
}


def machine_hint(error: OSError) -> str | None:
    """What to do where the machine is in the way; None for any other error."""
    return _HINTS.get(error.errno or 0)


@contextmanager
def told_plainly(doing: str, path: Path) -> Iterator[None]:
    """Turns an OSError into a LineageError that says what failed, on which path, and what to do."""
    try:
        yield
    except OSError as error:
        place = str(error.filename or path)
        hint = machine_hint(error) or "nothing published is lost"
        raise LineageError(f"can't {doing}: {error.strerror or error}", where=place, hint=hint) from error


def write_whole(path: Path, text: str) -> None:
    """Write a file by rename: a reader, and a crash, sees all of it or none."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """The same with bytes."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which is made if need be. A crash lets go of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:  # said, since a child that was forked meanwhile would keep the lock of a file that is only closed
            fcntl.flock(handle, fcntl.LOCK_UN)


def entries(folder: Path) -> list[Path]:
    """What a folder holds, sorted; nothing if it isn't there."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def sync_tree(folder: Path) -> None:
    """Push a folder's files and names to the disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place, name))
        sync(Path(place))


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
