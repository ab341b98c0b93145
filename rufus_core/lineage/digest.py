"""Digests: the identity of what a step wrote, known after it ran."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from rufus_core.errors import LineageError
from rufus_core.lineage.canonical import canonical_json
from rufus_core.types import Frozen

MAX_NAMED = 3  # files named in one line
RECORD_FILE = "record.json"
COLLECTED_FILE = "collected.json"
_BESIDE = (RECORD_FILE, COLLECTED_FILE)


class FileEntry(Frozen):
    size: int  # bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class Digest:
    sha256: str
    files: Mapping[str, FileEntry]  # by path inside the folder, posix, sorted


class FileChange(Frozen):
    path: str
    change: Literal["changed", "missing", "added"]


class FileHasher(Protocol):
    def __call__(self, path: Path) -> FileEntry: ...


def hash_file(path: Path) -> FileEntry:
    with path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileEntry(size=stream.tell(), sha256=sha256)


def digest_tree(folder: Path, hasher: FileHasher = hash_file) -> Digest:
    """Digest of a folder: SHA-256 over the sorted (path, size, SHA-256) of its files.

    The record at the folder's top is left out, for it is written last and holds the digest, and so is the note of what
    was collected. Empty folders don't count. A link inside the folder counts as the file or folder it points to, so a
    copy without links is equal.

    Raises:
        LineageError: for a link that leaves the folder, dangles or runs in a circle, and for a name or a kind of file
            (socket, pipe, device) that can't be recorded.
        OSError: a file can't be read.
    """
    root = folder.resolve(strict=True)
    files = {path: hasher(root / path) for path in sorted(_paths(root, root, (root,))) if path not in _BESIDE}
    return Digest(digest_files(files), files)


def digest_files(files: Mapping[str, FileEntry]) -> str:
    """The digest that belongs to a table of files."""
    rows = [[path, files[path].size, files[path].sha256] for path in sorted(files)]
    return hashlib.sha256(canonical_json(rows).encode()).hexdigest()


def compare_files(recorded: Mapping[str, FileEntry], found: Mapping[str, FileEntry]) -> tuple[FileChange, ...]:
    """Which files differ from what was recorded, in order of path."""
    changes = []
    for path in sorted(recorded.keys() | found.keys()):
        if path not in found:
            changes.append(FileChange(path=path, change="missing"))
        elif path not in recorded:
            changes.append(FileChange(path=path, change="added"))
        elif recorded[path] != found[path]:
            changes.append(FileChange(path=path, change="changed"))
    return tuple(changes)


def _paths(folder: Path, root: Path, above: tuple[Path, ...]) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            name = path.relative_to(root).as_posix()
            if not name.isprintable():
                raise LineageError(f"the file name {name!r} can't be recorded", where=str(root), hint="rename it")
            if entry.is_symlink():
                _check_link(path, root, above)
            if entry.is_dir():
                yield from _paths(path, root, (*above, path.resolve()))
            elif entry.is_file():
                yield name
            else:
                raise LineageError("neither a file nor a folder", where=str(path), hint="an artifact holds files only")


def _check_link(path: Path, root: Path, above: tuple[Path, ...]) -> None:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: Python 3.11's word for a link to itself
        raise LineageError("a link that points nowhere", where=str(path), hint="copy the file in its place") from error
    if not target.is_relative_to(root):
        raise LineageError("a link that leaves its artifact", where=str(path), hint="copy the file in its place")
    if target in above:
        raise LineageError("a link that runs in a circle", where=str(path), hint="remove it")


def named(changes: Sequence[FileChange]) -> str:
    """Some changed files in one line."""
    files = ", ".join(f"{change.path} {change.change}" for change in changes[:MAX_NAMED])
    return f"{files} and {len(changes) - MAX_NAMED} more" if len(changes) > MAX_NAMED else files
