"""Collect: give back the disk of what no kept checkpoint needs. Records stay, so that it can be made anew."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rufus_core.errors import LineageError
from rufus_core.lineage.adopt import ADOPTED
from rufus_core.lineage.attempt import Attempt
from rufus_core.lineage.collected import Collected, dump_collected, read_collected
from rufus_core.lineage.digest import COLLECTED_FILE, RECORD_FILE
from rufus_core.lineage.external import external_state
from rufus_core.lineage.files import entries, locked, told_plainly, write_whole
from rufus_core.lineage.lease import lock_file
from rufus_core.lineage.names import record_id, step_of
from rufus_core.lineage.provenance import diff_file
from rufus_core.lineage.record import CHECKPOINT_KINDS, Record
from rufus_core.lineage.resolve import checkpoint_name
from rufus_core.lineage.store import Store


@dataclass(frozen=True, slots=True)
class Item:
    """Something that can go: an artifact or some of its files, a broken artifact that was replaced, a dead attempt.

    `loss` says what can't be done without it. `files` are paths inside `folder`, as recorded.
    """

    what: Literal["replaced", "attempt", "artifact", "steps"]
    id: str
    why: str
    loss: str
    num_bytes: int
    folder: Path
    files: tuple[str, ...] = ()
    record: Record | None = None
    attempt: Attempt | None = None


def collectable(
    store: Store, versions: Mapping[str, str], keep: Sequence[str] | None = None, in_use: Collection[str] = ()
) -> list[Item]:
    """What can go. Nothing is changed.

    Kept are the newest artifact of every name, or with `keep` the newest checkpoints of these stages, with all they
    were made from and their scores; what was adopted; what is `in_use` (record ids); whatever a living job writes.

    Args:
        versions: the declared versions of the implementations, by kind: another one can't make the same again.

    Raises:
        LineageError: a stage of `keep` has no checkpoint, or a record can't be read: what it holds on to is unknown.
    """
    listing = store.listing()
    if listing.faults:
        raise listing.faults[0]
    records = {record.id: record for record in listing.records}
    kept = _kept(store, records, keep, in_use)
    loss = _Losses(store, records, versions)
    items = [*_replaced(store), *_attempts(store)]
    for record in records.values():
        if record.id in kept:
            items += _steps(store, record, records, kept, loss)
        elif files := _present(store, record, record.files):
            items.append(_item(store, record, "artifact", "no kept checkpoint is made from it", loss.of(record), files))
    return items


def collect(store: Store, items: Sequence[Item]) -> int:
    """Remove the bytes and keep the records, and all that the shared root has.

    Returns how many bytes were freed; what changed or came to life meanwhile stays.
    """
    freed = 0
    for item in items:
        with told_plainly("collect", item.folder):
            freed += item.num_bytes if _collect(store, item) else 0
    return freed


def _collect(store: Store, item: Item) -> bool:
    if item.attempt is not None:
        with locked(lock_file(store.root, item.attempt.name, item.attempt.fingerprint)):
            if item.attempt.alive():
                return False
            item.attempt.discard()
    elif item.record is None:
        for path in entries(item.folder):
            if path.name != RECORD_FILE:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    else:
        with locked(lock_file(store.root, item.record.name, item.record.fingerprint)):
            if store.get(item.record.id) != item.record:
                return False
            before = read_collected(item.folder)
            gone = sorted({*item.files, *(before.files if before else ())})
            # The note first: a crash in between leaves files that it names, and the next collection takes them.
            note = Collected(files=tuple(gone), when=datetime.now(UTC))
            write_whole(item.folder / COLLECTED_FILE, dump_collected(note))
            for name in item.files:
                (item.folder / name).unlink(missing_ok=True)
            _remove_empty(item.folder)
    return True


def _kept(store: Store, records: Mapping[str, Record], keep: Sequence[str] | None, in_use: Collection[str]) -> set[str]:
    roots = {id_ for id_ in in_use if id_ in records}
    roots |= {record.id for record in records.values() if ADOPTED in record.config}
    newest = {record.name: record for record in records.values()}  # oldest first, so that the newest stays
    if keep is None:
        roots |= {record.id for record in newest.values()}
    for stage in keep or ():
        name = stage if stage == "base" else checkpoint_name(stage)
        if name not in newest:
            raise LineageError(
                f"there is no checkpoint of {stage!r} to keep", where=str(store.root), hint="rufus table"
            )
        roots.add(newest[name].id)
    kept = _with_ancestors(records, roots)
    for record in newest.values():
        measured = record.inputs.get("checkpoint")
        if record.kind == "scores" and measured and measured.record_id in kept:
            kept |= _with_ancestors(records, {record.id})
    return kept


def _with_ancestors(records: Mapping[str, Record], roots: Collection[str]) -> set[str]:
    found, waiting = set[str](), list(roots)
    while waiting:
        id_ = waiting.pop()
        if id_ in records and id_ not in found:
            found.add(id_)
            waiting += [source.record_id for source in records[id_].inputs.values()]
    return found


def _steps(
    store: Store, record: Record, records: Mapping[str, Record], kept: Collection[str], loss: _Losses
) -> Iterator[Item]:
    """The steps of a kept training that no kept checkpoint chose; all stay while none was chosen."""
    chosen = {
        other.decision.chosen_step
        for other in records.values()
        if other.id in kept and other.decision and any(i.record_id == record.id for i in other.inputs.values())
    }
    if record.kind != "training" or not chosen:
        return
    unchosen = {path: step for path in record.files if (step := step_of(path)) is not None and step not in chosen}
    if files := _present(store, record, unchosen):
        steps = sorted({unchosen[path] for path in files})
        told = f"steps {', '.join(map(str, steps))} can't be measured or selected; {loss.of(record)}"
        yield _item(store, record, "steps", "no kept checkpoint is one of these steps", told, files)


def _item(
    store: Store, record: Record, what: Literal["artifact", "steps"], why: str, loss: str, files: Sequence[str]
) -> Item:
    size = sum(record.files[path].size for path in files)
    return Item(what, record.id, why, loss, size, store.path(record), tuple(files), record)


def _present(store: Store, record: Record, files: Collection[str]) -> list[str]:
    return [path for path in files if (store.path(record) / path).is_file()]


def _replaced(store: Store) -> Iterator[Item]:
    for folder in entries(store.root / "replaced"):
        size = _size(folder) - _size(folder / RECORD_FILE)
        if size > 0:
            loss = "can't be compared with what took its place"
            yield Item("replaced", folder.name, "another artifact is in its place", loss, size, folder)


def _attempts(store: Store) -> Iterator[Item]:
    for attempt in store.leftover_attempts():
        id_ = record_id(attempt.name, attempt.fingerprint)
        loss = "the next run starts this step from its beginning" if attempt.has_state() else "nothing"
        yield Item("attempt", id_, "its job died", loss, _size(attempt.home), attempt.home, attempt=attempt)


class _Losses:
    """What can't be done without an artifact's bytes."""

    def __init__(self, store: Store, records: Mapping[str, Record], versions: Mapping[str, str]) -> None:
        self._store, self._records, self._versions = store, records, versions
        self._reasons: dict[str, str] = {}

    def of(self, record: Record) -> str:
        if self._store.shared and self._store.shared.holds(record):
            return "fetched from the shared store when needed"
        for id_ in sorted(_with_ancestors(self._records, {record.id})):
            if reason := self._reason(self._records[id_]):
                of = "" if id_ == record.id else f"{id_}: "
                return f"UNREPRODUCIBLE: {of}{reason}"
        measured = " can't be measured until then" if record.kind in CHECKPOINT_KINDS else ""
        return f"made again when needed;{measured}".rstrip(";")

    def _reason(self, record: Record) -> str:
        if record.id not in self._reasons:
            self._reasons[record.id] = next(self._obstacles(record), "")
        return self._reasons[record.id]

    def _obstacles(self, record: Record) -> Iterator[str]:
        """Why the same bytes may not come out again."""
        for file in record.external.values():
            if external_state(file).status != "intact":
                yield f"{file.path} is gone or changed"
        if record.version != self._versions.get(record.kind, record.version):
            yield f"needs version {record.version} of its code, this is {self._versions[record.kind]}"
        sha256 = record.provenance.dirty_diff_sha256
        if sha256 is not None and not diff_file(self._store.root, sha256).exists():
            yield "the uncommitted changes that made it were not kept"


def _size(place: Path) -> int:
    if place.is_file():
        return place.stat().st_size
    return sum(path.lstat().st_size for path in place.rglob("*") if not path.is_dir()) if place.is_dir() else 0


def _remove_empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not entries(path):
            path.rmdir()
