"""Prepared trees on this machine: each distinct one is written once, below a private folder, and then only read."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rufus_core.data.harbor import check_path
from rufus_core.errors import InfrastructureError


@dataclass(slots=True)
class WrittenTree:
    """A tree below `folder`, whose files belong to `user`; `num_uses` sessions see it now."""

    folder: Path
    user: int
    num_uses: int = 0


class TreeStore:
    """Writes trees and deletes them again. Safe to use from several threads at once.

    Of those that no session uses, the `keep` that were used last are kept.
    """

    def __init__(self, folder: Path, keep: int = 64) -> None:
        folder.mkdir()
        self._folder, self._keep = folder, keep
        self._written: OrderedDict[str, WrittenTree] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, files: Mapping[str, str], user: int) -> str:
        """The name of a tree of these files, which stays until it is given back; `user` is its owner if it is new.

        Raises HarborError for an unsafe path, InfrastructureError where it can't be written.
        """
        name = tree_digest(files)
        with self._lock:
            tree = self._written.get(name)
            if tree is None:
                tree = self._written[name] = WrittenTree(_write(self._folder / name, files, user), user)
            tree.num_uses += 1
            self._written.move_to_end(name)
        return name

    def __getitem__(self, name: str) -> WrittenTree:
        return self._written[name]

    def give_back(self, name: str) -> None:
        with self._lock:
            self._written[name].num_uses -= 1
            idle = [name for name, tree in self._written.items() if tree.num_uses == 0]
            for old in idle[: -self._keep or None]:
                shutil.rmtree(self._written.pop(old).folder)


def tree_digest(files: Mapping[str, str]) -> str:
    """SHA-256 of paths and texts. Trees of equal files are equal, wherever they are mounted."""
    digest = hashlib.sha256()
    for path in sorted(files):
        for data in (_encode(path), _encode(files[path])):
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def check_paths(files: Mapping[str, str]) -> None:
    """Raises HarborError for a path that does not stay below its folder. One that ends in `/` is a folder."""
    for path in files:
        check_path(path.removesuffix("/"))


def _write(folder: Path, files: Mapping[str, str], user: int) -> Path:
    check_paths(files)
    try:
        with _all_or_nothing(folder):
            for path, text in files.items():
                parent, _, name = path.rpartition("/")
                _make_folders(folder, parent, user)
                if name:
                    _write_file(folder / path, _encode(text), user)
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"the task's files can't be written: {error}") from error
    return folder


@contextmanager
def _all_or_nothing(folder: Path) -> Iterator[None]:
    folder.mkdir()
    try:
        yield
    except BaseException:
        shutil.rmtree(folder)
        raise


def _make_folders(top: Path, relative: str, user: int) -> None:
    """The umask has no say in a prepared tree."""
    folder = top / relative
    if folder == top or folder.is_dir():
        return
    _make_folders(top, relative.rpartition("/")[0], user)
    folder.mkdir()
    folder.chmod(0o755)
    os.chown(folder, user, -1)


def _write_file(path: Path, data: bytes, user: int) -> None:
    with path.open("xb") as file:
        file.write(data)
        os.fchmod(file.fileno(), 0o755 if data.startswith(b"#!") else 0o644)
        os.fchown(file.fileno(), user, -1)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
