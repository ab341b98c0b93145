"""The store: published artifacts in a local folder, each with its record.

    artifacts/<name>/<fingerprint>/     an artifact: its files, and record.json, written last
    attempts/<name>.<fingerprint>.<x>/  what steps are writing now, or were when they died
    replaced/<name>.<fingerprint>.<x>/  artifacts that were found broken and made again
    by-digest/<digest>.<name>.<fp>      empty marks, so that a digest is found without reading every record
    by-name/<name>/<published>.<fp>     empty marks, so that the newest is; see `newest`
    leases/<name>.<fp>.json             which job makes an artifact; see `lease`
    locks/                              one lock for each artifact: of its lease, its attempts and its place

A name's slashes are dots in a folder's name; a fingerprint is cut to 16 digits.
"""

from __future__ import annotations

import errno
import shutil
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rufus_core.errors import LineageError
from rufus_core.lineage import sharing
from rufus_core.lineage.attempt import Attempt, attempts_in, new_attempt
from rufus_core.lineage.cache import HashCache
from rufus_core.lineage.collected import Collected, dump_collected, read_collected
from rufus_core.lineage.crash_points import CrashPoint, pass_by
from rufus_core.lineage.digest import COLLECTED_FILE, RECORD_FILE, FileChange, compare_files, digest_tree, hash_file
from rufus_core.lineage.files import entries, locked, sync, sync_tree, told_plainly, write_bytes, write_whole
from rufus_core.lineage.lease import Lease, acquire, lock_file
from rufus_core.lineage.names import SHORT, check_fingerprint, name_of_slug, record_id, slug, split_record_id
from rufus_core.lineage.newest import mark_published
from rufus_core.lineage.record import Draft, Record, dump_record, read_record
from rufus_core.lineage.resolve import Ref, resolve
from rufus_core.lineage.shared import Shared

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)


@dataclass(frozen=True, slots=True)
class Listing:
    """Records that could be read, oldest first, and what is wrong with each of the others."""

    records: tuple[Record, ...]
    faults: tuple[LineageError, ...]


class Store:
    """Artifacts by name and fingerprint. Several processes may use one store at once.

    Args:
        root: the store's folder; made at the first attempt.
        cache: lets `find` skip the hashing of files that look unchanged.
        shared: a root that other homes and hosts use too; see `sharing` for what goes to it and comes from it.
    """

    def __init__(self, root: Path, cache: HashCache | None = None, shared: Shared | None = None) -> None:
        self.root, self.shared = root, shared
        self._cache = cache

    # Reading

    def find(self, name: str, fingerprint: str, check: bool = True) -> Record | None:
        """The intact artifact of this name and fingerprint; None if it must be made (again).

        One that is intact only at the shared root counts; `sharing.fetch` brings its bytes.

        Args:
            check: compare the files with the record. Without it, a record is enough.

        Raises:
            LineageError: its record can't be read, or is another artifact's.
            InfrastructureError: the shared root fails.
        """
        return self._find_here(name, fingerprint, check) or sharing.find_shared(self, name, fingerprint)

    def _find_here(self, name: str, fingerprint: str, check: bool) -> Record | None:
        folder = self._folder(name, fingerprint)
        if not (folder / RECORD_FILE).exists():
            return None
        record = self._read(folder)
        if record.fingerprint != fingerprint:
            raise LineageError(f"this record has the fingerprint {record.fingerprint}", where=str(folder / RECORD_FILE))
        if check and self.changes(record, trust_cache=True):
            return None
        return record

    def has(self, name: str, fingerprint: str) -> bool:
        """Whether something was published here, intact or not."""
        return (self._folder(name, fingerprint) / RECORD_FILE).exists()

    def get(self, record_id: str) -> Record | None:
        """The record of this id; None where there is none. Raises LineageError if it can't be read."""
        parts = split_record_id(record_id)
        if parts is None:
            return None
        folder = self.root / "artifacts" / slug(parts[0]) / parts[1]
        return self._read(folder) if (folder / RECORD_FILE).exists() else None

    def path(self, record: Record) -> Path:
        """The folder of a record's artifact."""
        return self._folder(record.name, record.fingerprint)

    def changes(self, record: Record, trust_cache: bool = False) -> tuple[FileChange, ...]:
        """Which files of an artifact differ from its record; hashes every file unless the cache is trusted."""
        folder = self.path(record)
        cache = self._cache if trust_cache else None
        with told_plainly("read this artifact", folder):
            found = digest_tree(folder, cache or hash_file)
        if cache is not None:
            cache.save()
        return compare_files(record.files, found.files)

    def names(self) -> list[str]:
        """Names under which something was published."""
        folder = self.root / "artifacts"
        with told_plainly("read the store", folder):
            return [name_of_slug(entry.name) for entry in entries(folder) if entry.is_dir()]

    def listing(self, name: str | None = None) -> Listing:
        """Records of one name, or all. Those that can't be read don't hide the others."""
        records, faults = [], []
        for each in self.names() if name is None else [name]:
            folder = self.root / "artifacts" / slug(each)
            with told_plainly("read the store", folder):
                folders = [entry for entry in entries(folder) if (entry / RECORD_FILE).exists()]
            for entry in folders:
                try:
                    records.append(self._read(entry))
                except LineageError as fault:
                    faults.append(fault)
        return Listing(tuple(sorted(records, key=lambda r: (r.published, r.id))), tuple(faults))

    def records(self, name: str | None = None) -> tuple[Record, ...]:
        """The readable records of one name, or all, oldest first."""
        return self.listing(name).records

    def ids_by_digest(self, prefix: str) -> list[str]:
        """Ids of records whose digest starts like this, according to the marks."""
        folder = self.root / "by-digest"
        with told_plainly("read the store", folder):
            marks = [mark.name for mark in entries(folder) if mark.name.startswith(prefix)]
        return [mark.partition(".")[2].replace(".", "/") for mark in marks]

    def resolve(self, text: str) -> Ref:
        """The artifact that a user names by stage, stage and step, digest, name or id; see `resolve`."""
        return resolve(self, text)

    # Writing

    def lease(self, name: str, fingerprint: str) -> Lease:
        """The right to make an artifact, until it is released. Raises LeaseHeld while another job has it."""
        return acquire(self.root, name, fingerprint)

    def attempt(self, name: str, fingerprint: str) -> Attempt:
        """A fresh folder for a step to write into."""
        folder = self.root / "attempts"
        with told_plainly(f"start writing {record_id(name, fingerprint)}", folder):
            return new_attempt(folder, name, fingerprint)

    def leftover_attempts(self) -> list[Attempt]:
        """Attempts whose process is gone: to resume from, or to discard."""
        folder = self.root / "attempts"
        with told_plainly("read the attempts", folder):
            return [attempt for attempt in attempts_in(folder) if not attempt.alive()]

    def publish(self, attempt: Attempt, draft: Draft, lease: Lease | None = None, force: bool = False) -> Record:
        """Make an attempt's files an artifact: whole, or not at all.

        If an intact artifact of the same fingerprint is there, it stays and its record is returned. A broken one moves
        to `replaced`, as does an attempt whose result differs from the intact artifact's.

        Args:
            lease: must be held still at the moment at which the artifact is put in place.
            force: it is the intact artifact that moves, if the attempt's result differs.

        Raises:
            LeaseLost: it isn't.
            LineageError: the files can't be recorded or stored. The attempt stays where it is.
        """
        target = self._folder(attempt.name, attempt.fingerprint)
        with told_plainly(f"publish {record_id(attempt.name, attempt.fingerprint)}", attempt.folder):
            pass_by(CrashPoint.BEFORE_RECORD)
            digest = digest_tree(attempt.folder)
            record = Record(
                **draft.model_dump(),
                name=attempt.name,
                fingerprint=attempt.fingerprint,
                digest=digest.sha256,
                files=dict(digest.files),
                published=datetime.now(UTC),
            )
            sync_tree(attempt.folder)
            write_whole(attempt.home / RECORD_FILE, dump_record(record))
            (attempt.home / RECORD_FILE).replace(attempt.folder / RECORD_FILE)
            self._mark(record)  # before the artifact: a mark without one is ignored, one without a mark is slow
            pass_by(CrashPoint.AFTER_RECORD)
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked(lock_file(self.root, attempt.name, attempt.fingerprint)):
                if lease is not None:
                    lease.require()
                record = self._put(attempt, record, target, force)
            pass_by(CrashPoint.AFTER_RENAME)
            sync(target.parent)
            sync(target.parent.parent)
        attempt.discard()
        return record

    def take(self, attempt: Attempt, record: Record, raw: bytes) -> None:
        """Make an attempt's files, which are what a record from elsewhere says, its artifact.

        What was there and differs moves to `replaced`. Raises LineageError where the disk refuses.
        """
        target = self._folder(record.name, record.fingerprint)
        with told_plainly(f"store {record.id}", attempt.folder):
            (attempt.folder / RECORD_FILE).write_bytes(raw)
            sync_tree(attempt.folder)
            self._mark(record)
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked(lock_file(self.root, record.name, record.fingerprint)):
                self._put(attempt, record, target, force=True)
            sync(target.parent)
        attempt.discard()

    def note(self, record: Record, raw: bytes) -> None:
        """Keep a record from elsewhere without its bytes, if nothing is in its place."""
        if not self.has(record.name, record.fingerprint):
            attempt = self.attempt(record.name, record.fingerprint)
            here = Collected(files=tuple(sorted(record.files)), when=record.published, elsewhere=True)
            (attempt.folder / COLLECTED_FILE).write_text(dump_collected(here), encoding="utf-8")
            self.take(attempt, record, raw)

    def rewrite(self, record: Record, raw: bytes) -> None:
        """Let an artifact have the record of the same files that came first elsewhere."""
        folder = self.path(record)
        lock = lock_file(self.root, record.name, record.fingerprint)
        with told_plainly(f"store {record.id}", folder), locked(lock):
            self._mark(record)
            write_bytes(folder / RECORD_FILE, raw)

    def set_aside(self, record: Record) -> None:
        """Move an artifact to `replaced`."""
        folder = self.path(record)
        lock = lock_file(self.root, record.name, record.fingerprint)
        with told_plainly(f"set {record.id} aside", folder), locked(lock):
            self._set_aside(folder, folder)

    def _put(self, attempt: Attempt, record: Record, target: Path, force: bool) -> Record:
        """Move an attempt's files into place, unless an intact artifact stays there. The lock is held."""
        while not _moved(attempt.folder, target):
            kept = self._intact(target)
            if kept is not None and (kept.digest == record.digest or not force):
                if kept.digest != record.digest:
                    self._set_aside(attempt.folder, target)
                return kept
            if _is_note(target):
                shutil.rmtree(target)
            else:
                self._set_aside(target, target)
        return record

    def _intact(self, folder: Path) -> Record | None:
        try:
            record = self._read(folder)
            return None if self.changes(record) else record
        except LineageError:
            return None  # broken in a way that reading it tells

    def _set_aside(self, folder: Path, target: Path) -> None:
        place = self.root / "replaced" / f"{target.parent.name}.{target.name}.{uuid.uuid4().hex[:8]}"
        place.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(place)

    def _mark(self, record: Record) -> None:
        folder = self.root / "by-digest"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{record.digest}.{slug(record.name)}.{record.fingerprint[:SHORT]}").touch()
        mark_published(self.root, record)

    def _folder(self, name: str, fingerprint: str) -> Path:
        return self.root / "artifacts" / slug(name) / check_fingerprint(fingerprint)[:SHORT]

    def _read(self, folder: Path) -> Record:
        """The record in an artifact's folder, if it belongs there."""
        record = read_record(folder / RECORD_FILE)
        if (slug(record.name), record.fingerprint[:SHORT]) != (folder.parent.name, folder.name):
            raise LineageError(
                f"this record is that of {record.id}",
                where=str(folder / RECORD_FILE),
                hint="move that folder out of the store",
            )
        return record


def _is_note(folder: Path) -> bool:
    """Whether a folder holds a record from elsewhere and nothing else."""
    if {entry.name for entry in entries(folder)} != {RECORD_FILE, COLLECTED_FILE}:
        return False
    note = read_collected(folder)
    return note is not None and note.elsewhere


def _moved(folder: Path, target: Path) -> bool:
    """Rename a folder; False if something stands in its place."""
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True
