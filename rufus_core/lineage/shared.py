"""A shared root as a store of artifacts: what several homes and hosts have in common.

Bytes are written first, each file under its own hash, and the record last, only where none is. So nothing is ever half
there, two that publish one fingerprint end with the record of the first, and nothing needs to be renamed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rufus_core.errors import InfrastructureError, LineageError
from rufus_core.lineage.digest import FileChange, FileEntry, hash_file
from rufus_core.lineage.record import Record
from rufus_core.lineage.roots import Root, open_root
from rufus_core.lineage.shared_layout import PROBE, RECORDS, file_key, record_key, shared_record
from rufus_core.lineage.shared_lease import SharedLease, acquire_shared

_AGAIN = "run the same command again"


@dataclass(frozen=True, slots=True)
class Published:
    """A record at the root, and its very bytes."""

    record: Record
    raw: bytes


class Shared:
    """The artifacts of one shared root. Every method raises InfrastructureError where the root fails."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._tried = False

    @classmethod
    def at(cls, url: str | None) -> Shared | None:
        """The shared root at a URL; None without one. Raises ConfigError."""
        return cls(open_root(url)) if url else None

    @property
    def url(self) -> str:
        return self.root.url

    def get(self, name: str, fingerprint: str) -> Published | None:
        """What is published under this fingerprint. Raises LineageError for a record that doesn't belong there."""
        key = record_key(name, fingerprint)
        raw = self.root.read(key)
        if raw is None:
            return None
        record = shared_record(raw, key, self._at(key))
        if record.fingerprint != fingerprint:
            raise LineageError(f"this record has the fingerprint {record.fingerprint}", where=self._at(key))
        return Published(record, raw)

    def news(self, known: Collection[str]) -> tuple[list[Published], list[LineageError]]:
        """Records whose keys aren't among the known ones, and what is wrong with those that can't be taken."""
        found, faults = [], []
        unknown = [key for key in self.root.keys(RECORDS) if key not in known]
        for key, raw in self.root.read_all(unknown).items():
            try:
                found.append(Published(shared_record(raw, key, self._at(key)), raw))
            except LineageError as fault:
                faults.append(fault)
        return found, faults

    def publish(self, record: Record, raw: bytes) -> Published:
        """Put a record at the root whose files are there; the one that came first, if there is one."""
        key = record_key(record.name, record.fingerprint)
        if self.root.create(key, raw):
            return Published(record, raw)
        first = self.get(record.name, record.fingerprint)
        if first is None:
            raise InfrastructureError("this record came and went", where=self._at(key), hint=_AGAIN)
        return first

    def put(self, entry: FileEntry, file: Path) -> None:
        """Put a file's bytes at the root, unless they are there.

        Raises:
            LineageError: the file isn't what its record says: no wrong bytes may lie under a hash.
        """
        key = file_key(entry.sha256)
        if self.root.size(key) == entry.size:
            return
        self._try()
        if hash_file(file) != entry:
            raise LineageError("this file changed since it was recorded", where=str(file), hint="rufus verify")
        self.root.put(key, file)
        size = self.root.size(key)
        if size != entry.size:
            what = f"{self._at(key)} has {size} bytes after {entry.size} were written"
            raise InfrastructureError(what, where=self.url, hint=_AGAIN)

    def fetch(self, record: Record, path: str, to: Path) -> None:
        """Write a file of a published artifact to a place of this machine.

        Raises:
            LineageError: the root doesn't hold these bytes.
        """
        entry = record.files[path]
        to.parent.mkdir(parents=True, exist_ok=True)
        change = self._copy(entry, path, to)
        if change is not None:  # perhaps the bytes went bad on the way
            change = self._copy(entry, path, to)
        if change is not None:
            state = "gone from" if change.change == "missing" else "not as recorded in"
            raise LineageError(
                f"{path} of {record.id} is {state} the shared store",
                where=self._at(file_key(entry.sha256)),
                hint=f"{self.mending(record, [change])}; `rufus verify {record.id} --shared` checks all its files",
            )

    def changes(self, record: Record) -> tuple[FileChange, ...]:
        """Which files of a published artifact aren't at the root as recorded; reads every byte."""
        compared = (self._compare(entry, path) for path, entry in sorted(record.files.items()))
        return tuple(change for change in compared if change is not None)

    def mending(self, record: Record, changes: Sequence[FileChange]) -> str:
        """What a user does about wrong bytes of an artifact."""
        wrong = [file_key(record.files[change.path].sha256) for change in changes if change.change == "changed"]
        places = " and ".join(map(self._at, [record_key(record.name, record.fingerprint), *sorted(set(wrong))]))
        return f"delete {places}, then rufus run: where it is intact it is shared again, else made anew"

    def holds(self, record: Record) -> bool:
        """Whether this artifact can be fetched, as far as names and sizes tell."""
        published = self.get(record.name, record.fingerprint)
        return (
            published is not None
            and published.record.digest == record.digest
            and all(self.root.size(file_key(entry.sha256)) == entry.size for entry in record.files.values())
        )

    def read(self, sha256: str) -> bytes | None:
        """A small file by its hash; None where the root has none with these bytes."""
        data = self.root.read(file_key(sha256))
        return data if data is not None and hashlib.sha256(data).hexdigest() == sha256 else None

    def lease(self, name: str, fingerprint: str) -> SharedLease:
        """The right to make an artifact among all that use the root. Raises LeaseHeld while another job has it."""
        self._try()
        return acquire_shared(self.root, name, fingerprint)

    def _copy(self, entry: FileEntry, path: str, to: Path) -> FileChange | None:
        with to.open("wb") as copy:
            return self._compare(entry, path, copy.write)

    def _compare(self, entry: FileEntry, path: str, keep: Callable[[bytes], object] = len) -> FileChange | None:
        """Read a file at the root, and give its bytes to `keep` piece by piece."""
        sha256, size = hashlib.sha256(), 0
        try:
            for chunk in self.root.chunks(file_key(entry.sha256)):
                sha256.update(chunk)
                size += len(chunk)
                keep(chunk)
        except FileNotFoundError:
            return FileChange(path=path, change="missing")
        same = FileEntry(size=size, sha256=sha256.hexdigest()) == entry
        return None if same else FileChange(path=path, change="changed")

    def _try(self) -> None:
        """Find out, before the first key is written, whether the root keeps a key from being created twice."""
        if self._tried:
            return
        once, twice = b'{"try": 1}\n', b'{"try": 2}\n'
        if self.root.create(PROBE, once) and self.root.create(PROBE, twice):
            raise InfrastructureError(
                "this shared store lets two jobs create one key, so they would overwrite each other",
                where=self.url,
                hint="use one that honours `If-None-Match: *`, as S3 does",
            )
        self._tried = True

    def _at(self, key: str) -> str:
        return f"{self.url}/{key}"
