"""What goes from a home's store to the shared root, and what comes from there.

A home's store is where jobs read and write, with a shared root or without. Sharing copies what was published, record
last; fetching copies it back, by the same way as publishing. Without a shared root all of this does nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rufus_core.errors import LineageError
from rufus_core.lineage.crash_points import CrashPoint, pass_by
from rufus_core.lineage.digest import RECORD_FILE, FileEntry
from rufus_core.lineage.files import entries, told_plainly, write_bytes
from rufus_core.lineage.provenance import diff_file
from rufus_core.lineage.record import Record, parse_record
from rufus_core.lineage.shared_layout import RECORDS

if TYPE_CHECKING:
    from rufus_core.lineage.shared import Published
    from rufus_core.lineage.shared_lease import SharedLease
    from rufus_core.lineage.store import Store


def find_shared(store: Store, name: str, fingerprint: str) -> Record | None:
    """What the root has published under this fingerprint; its record is kept here too.

    Raises:
        LineageError: the record doesn't belong there.
        InfrastructureError: the root fails.
    """
    published = store.shared.get(name, fingerprint) if store.shared else None
    if published is None:
        return None
    _note(store, published)
    return published.record


def mirror(store: Store) -> list[LineageError]:
    """Keep every record of the root here, without bytes; what is wrong with those that can't be taken."""
    if store.shared is None:
        return []
    folders = [folder for name in entries(store.root / "artifacts") for folder in entries(name)]
    known = {f"{RECORDS}/{each.parent.name}/{each.name}.json" for each in folders if (each / RECORD_FILE).exists()}
    news, faults = store.shared.news(known)
    for published in news:
        _note(store, published)
    return faults


def share(store: Store, record: Record, lease: SharedLease | None = None) -> Record:
    """Publish an artifact of this store at the root too, if it isn't there. The record that holds from now on.

    That is the one which came first. Where it has the same files, it becomes this store's record; where it has others,
    this store's artifact moves to `replaced`.

    Args:
        lease: must be held still before the record is written.

    Raises:
        LeaseLost: it isn't.
        LineageError: the artifact's files aren't as recorded, or the root's record doesn't belong there.
        InfrastructureError: the root fails. The artifact stays, and the next run that reuses it shares it.
    """
    if store.shared is None:
        return record
    pass_by(CrashPoint.BEFORE_SHARE)
    folder = store.path(record)
    with told_plainly(f"share {record.id}", folder):
        raw = (folder / RECORD_FILE).read_bytes()
        first = store.shared.get(record.name, record.fingerprint)
        if first is None:
            _put_diff(store, record)
            for path, entry in record.files.items():
                store.shared.put(entry, folder / path)
            pass_by(CrashPoint.AFTER_SHARED_FILES)
            if lease is not None:
                lease.require()
            first = store.shared.publish(record, raw)
            pass_by(CrashPoint.AFTER_SHARED_RECORD)
    if first.raw == raw:
        return record
    if first.record.digest == parse_record(raw, str(folder)).digest:
        store.rewrite(first.record, first.raw)
    else:
        store.set_aside(record)
        _note(store, first)
    return first.record


def other_bytes(mine: Record, shared: Record) -> str:
    """What became of an artifact of other bytes than were shared first."""
    return (
        f"{mine.id}: the shared store has other bytes of it, {shared.digest[:12]} of {shared.provenance.host}; "
        f"{mine.digest[:12]} moved to replaced/"
    )


def fetch(store: Store, record: Record) -> Path:
    """The folder of an artifact, with what the root has of it where bytes are missing here or differ.

    Raises:
        LineageError: the root's bytes aren't what the record says; nothing here has changed then.
        InfrastructureError: the root fails.
    """
    folder = store.path(record)
    known = store.has(record.name, record.fingerprint)
    if store.shared is None or (known and not store.changes(record, trust_cache=True)):
        return folder
    published = store.shared.get(record.name, record.fingerprint)
    if published is None or published.record.digest != record.digest:
        return folder
    attempt = store.attempt(record.name, record.fingerprint)
    try:
        with told_plainly(f"fetch {record.id}", attempt.folder):
            for path in record.files:
                store.shared.fetch(record, path, attempt.folder / path)
        store.take(attempt, published.record, published.raw)
    finally:
        attempt.discard()
    return folder


def _note(store: Store, published: Published) -> None:
    _keep_diff(store, published.record)
    store.note(published.record, published.raw)


def _put_diff(store: Store, record: Record) -> None:
    """Share the uncommitted changes that an artifact was made with, if they were kept."""
    sha256 = record.provenance.dirty_diff_sha256
    if store.shared is not None and sha256 is not None:
        file = diff_file(store.root, sha256)
        if file.exists():
            store.shared.put(FileEntry(size=file.stat().st_size, sha256=sha256), file)


def _keep_diff(store: Store, record: Record) -> None:
    sha256 = record.provenance.dirty_diff_sha256
    if store.shared is None or sha256 is None or diff_file(store.root, sha256).exists():
        return
    diff = store.shared.read(sha256)
    if diff is not None:
        file = diff_file(store.root, sha256)
        with told_plainly("keep these uncommitted changes", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(file, diff)
