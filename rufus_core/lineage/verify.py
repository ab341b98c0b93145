"""Verify: every record against its bytes, its spelling, its inputs and the data files that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rufus_core.errors import LineageError
from rufus_core.lineage.collected import read_collected, unexplained
from rufus_core.lineage.digest import COLLECTED_FILE, RECORD_FILE, digest_files, hash_file, named
from rufus_core.lineage.external import external_state
from rufus_core.lineage.files import entries, told_plainly
from rufus_core.lineage.provenance import diff_file
from rufus_core.lineage.record import ExternalFile, Record, is_as_written
from rufus_core.lineage.store import Store
from rufus_core.ports.orchestration import Difference

AGAIN = "rufus run"  # the command that made an artifact also makes it again
_KEEPS_DIFFS = 2  # the schema version since which a store holds the diffs that its records name


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """What was compared, and each thing that isn't what its record says."""

    num_artifacts: int
    num_collected: int
    num_bytes: int
    differences: tuple[Difference, ...]
    only_shared: tuple[str, ...] = ()  # ids of artifacts whose bytes aren't here, but at the shared root


def verify_store(
    store: Store,
    records: Sequence[Record] | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
    shared: bool = False,
) -> StoreCheck:
    """Compare artifacts with their records; nothing is trusted, every byte is hashed.

    Args:
        records: those to compare; by default the whole store, where a folder without a record is a difference too.
        progress: called with the bytes of the artifacts that are done and of all, at the start and after each.
        shared: read every byte at the shared root too, of artifacts that are published there.
    """
    differences: list[Difference] = []
    if records is None:
        listing = store.listing()
        records = listing.records
        differences += [_unreadable(fault) for fault in listing.faults]
        differences += _without_record(store)
    num_collected = done = 0
    only_shared: dict[str, int] = {}  # bytes by id
    total = sum(map(_num_bytes, records))
    progress(done, total)
    told: set[ExternalFile] = set()
    for record in records:
        without, found = _artifact(store, record)
        num_collected += without == "collected"
        if without == "shared":
            only_shared[record.id] = _num_bytes(record)
        differences += [*found, *_shared(store, record, shared), *_inputs(store, record), *_diff(store, record)]
        for file in record.external.values():
            if file not in told:
                told.add(file)
                differences += _data_file(file)
        done += _num_bytes(record)
        progress(done, total)
    here = total - sum(only_shared.values())
    return StoreCheck(len(records), num_collected, here, tuple(differences), tuple(only_shared))


def _num_bytes(record: Record) -> int:
    return sum(entry.size for entry in record.files.values())


def _artifact(store: Store, record: Record) -> tuple[Literal["", "collected", "shared"], list[Difference]]:
    """Where those of its bytes are that aren't here on purpose; what differs."""
    folder = store.path(record)
    try:
        changes = store.changes(record)
        note = read_collected(folder)
        open_changes = unexplained(note, changes)
    except LineageError as error:
        return "", [_unreadable(error)]
    found = []
    if open_changes:
        found.append(Difference(record.id, f"differs from its record: {named(open_changes)}", AGAIN))
    if digest_files(record.files) != record.digest:
        found.append(Difference(record.id, "its digest isn't that of the files it lists", AGAIN))
    for name in (RECORD_FILE, COLLECTED_FILE):
        with told_plainly("read this artifact", folder):
            if (folder / name).exists() and not is_as_written(folder / name):
                found.append(Difference(record.id, f"{name} has other bytes than were written", AGAIN))
    if len(changes) == len(open_changes):
        return "", found
    return "shared" if note and note.elsewhere else "collected", found


def _shared(store: Store, record: Record, read: bool) -> Iterator[Difference]:
    if not read or store.shared is None:
        return
    try:
        published = store.shared.get(record.name, record.fingerprint)
    except LineageError as error:
        yield Difference(error.where or record.id, error.what, error.hint or AGAIN)
        return
    if published is None:
        yield Difference(record.id, "is not in the shared store", AGAIN)
    elif published.record.digest != record.digest:
        what = f"has digest {record.digest[:12]} here and {published.record.digest[:12]} in the shared store"
        yield Difference(record.id, what, AGAIN)
    elif changes := store.shared.changes(record):
        what = f"differs in the shared store: {named(changes)}"
        yield Difference(record.id, what, store.shared.mending(record, changes))


def _inputs(store: Store, record: Record) -> Iterator[Difference]:
    for role, source in record.inputs.items():
        try:
            parent = store.get(source.record_id)
        except LineageError:
            continue  # told as a record of its own, where the whole store is compared
        if parent is None:
            yield Difference(record.id, f"its {role} {source.record_id} is not in the store", AGAIN)
        elif parent.digest != source.digest:
            what = f"was made from {source.record_id} with digest {source.digest[:12]}, now {parent.digest[:12]}"
            yield Difference(record.id, what, f"rufus trace {record.id}")


def _data_file(file: ExternalFile) -> Iterator[Difference]:
    if what := external_state(file).what:
        yield Difference(file.path, what, f"rufus impact {file.path}")


def _diff(store: Store, record: Record) -> Iterator[Difference]:
    sha256 = record.provenance.dirty_diff_sha256
    if sha256 is None or record.schema_version < _KEEPS_DIFFS:
        return
    file = diff_file(store.root, sha256)
    try:
        state = "" if hash_file(file).sha256 == sha256 else "were altered"
    except OSError:
        state = "are gone"
    if state:
        what = f"the uncommitted changes it was made with {state}: {file.name}"
        yield Difference(record.id, what, f"rufus trace {record.id}")


def _without_record(store: Store) -> Iterator[Difference]:
    with told_plainly("read the store", store.root):
        for name in entries(store.root / "artifacts"):
            for folder in entries(name):
                if not (folder / RECORD_FILE).exists():
                    yield Difference(str(folder), "there is no record here", f"mv {folder} elsewhere; {AGAIN}")


def _unreadable(error: LineageError) -> Difference:
    place = error.where or ""
    folder = Path(place).parent if Path(place).name in (RECORD_FILE, COLLECTED_FILE) else Path(place)
    return Difference(place, error.what, error.hint or f"move {folder} out of the store, then {AGAIN}")
