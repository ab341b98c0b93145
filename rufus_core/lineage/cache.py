"""Hashes of files that were hashed before, so that `run` need not read every weight again."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from rufus_core.lineage.digest import FileEntry, hash_file
from rufus_core.lineage.files import write_whole


class HashCache:
    """A file hasher that remembers: (size, mtime, ctime) of a path -> SHA-256.

    A change that keeps all three goes unseen, so `trace` never uses it. A lost or damaged cache only costs time.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known = _load(file)
        self._dirty = False

    def __call__(self, path: Path) -> FileEntry:
        stat = path.stat()
        key, stamp = str(path), [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        known = self._known.get(key)
        if known is not None and known[:3] == stamp:
            return FileEntry(size=stat.st_size, sha256=str(known[3]))
        entry = hash_file(path)
        self._known[key] = [*stamp, entry.sha256]
        self._dirty = True
        return entry

    def save(self) -> None:
        if not self._dirty:
            return
        with suppress(OSError):  # on a full disk, say
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(self._known))
            self._dirty = False


def _load(file: Path) -> dict[str, list[int | str]]:
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {key: row for key, row in known.items() if isinstance(row, list) and len(row) == 4}
