"""Diff: in what two artifacts differ, and in what those that they were made from differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rufus_core.errors import LineageError
from rufus_core.lineage.record import DATA_KINDS, Input, Record
from rufus_core.lineage.resolve import Ref
from rufus_core.lineage.rows import RowChanges, row_changes
from rufus_core.lineage.sharing import fetch
from rufus_core.lineage.store import Store
from rufus_core.types import Frozen, Json

OF_ANY_NAME = (*DATA_KINDS, "reward_model", "training")  # kinds that are compared under different names too
MACHINE = {"host", "platform"}


class FieldChange(Frozen):
    """One value that differs. `path` is dotted; a side that has no such field is None."""

    path: str
    old: Json = None
    new: Json = None


class ArtifactDiff(Frozen):
    """Two artifacts that play the same part: `role` is the way from those asked for, empty for themselves."""

    role: str
    old: str  # ids
    new: str
    old_digest: str
    new_digest: str
    fields: tuple[FieldChange, ...]  # config.*, version, seed, step, decision, inputs.<role>, external.<role>
    code: tuple[FieldChange, ...]
    rows: RowChanges | None = None  # of data

    @property
    def equal(self) -> bool:
        return self.old_digest == self.new_digest and not self.fields and not self.code


class Diff(Frozen):
    """The first pair is what was asked for. Pairs of equal digests are left out below it."""

    pairs: tuple[ArtifactDiff, ...]
    faults: tuple[str, ...] = ()  # artifacts on the way that can't be read


def diff(store: Store, old: Ref, new: Ref) -> Diff:
    """Compare two artifacts, and down to the base what they were made from, as far as that differs.

    An input is followed where both have one in the same role, of the same name. Data, trainings and reward models are
    compared under other names too: two stages have no artifact in common.
    """
    walk = _Walk(store)
    walk.compare("", old.record, new.record)
    return Diff(pairs=tuple(walk.pairs), faults=tuple(walk.faults))


def field_changes(old: Json, new: Json, path: str = "") -> Iterator[FieldChange]:
    """Values that differ between two JSON values, in order of path.

    A list is one value, and so is all that one side has and the other doesn't. Absent and null are equal.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from field_changes(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif _plain(old) != _plain(new):
        yield FieldChange(path=path, old=old, new=new)


def _plain(value: Json) -> Json:
    return list(value) if isinstance(value, tuple) else value


class _Walk:
    """Depth first over pairs, each pair once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: set[tuple[str, str]] = set()
        self.pairs: list[ArtifactDiff] = []
        self.faults: list[str] = []

    def compare(self, role: str, old: Record, new: Record) -> None:
        if (old.id, new.id) in self._seen:
            return
        self._seen.add((old.id, new.id))
        self.pairs.append(self._pair(role, old, new))
        for name in (name for name in old.inputs if name in new.inputs):
            mine, other = old.inputs[name], new.inputs[name]
            if mine.digest == other.digest:
                continue
            before, after = self._get(mine), self._get(other)
            if before and after and (before.name == after.name or after.kind in OF_ANY_NAME):
                self.compare(f"{role}.{name}" if role else name, before, after)

    def _pair(self, role: str, old: Record, new: Record) -> ArtifactDiff:
        both_data = old.kind in DATA_KINDS and new.kind in DATA_KINDS and old.digest != new.digest
        return ArtifactDiff(
            role=role,
            old=old.id,
            new=new.id,
            old_digest=old.digest,
            new_digest=new.digest,
            fields=tuple(field_changes(_said(old), _said(new))),
            code=tuple(field_changes(_code(old), _code(new))),
            rows=self._rows(old, new) if both_data else None,
        )

    def _rows(self, old: Record, new: Record) -> RowChanges | None:
        try:
            return row_changes(self._files(old), self._files(new))
        except LineageError as error:
            self.faults.append(str(error))
            return None

    def _files(self, record: Record) -> dict[str, Path]:
        folder = fetch(self._store, record)
        return {name: folder / name for name in record.files if name.endswith(".jsonl")}

    def _get(self, source: Input) -> Record | None:
        try:
            record = self._store.get(source.record_id)
        except LineageError as error:
            self.faults.append(str(error))
            return None
        if record is None:
            self.faults.append(f"{source.record_id}: the store no longer holds it")
        return record


def _said(record: Record) -> dict[str, Json]:
    """What a record says of how it came to be."""
    decision = record.decision
    return {
        "kind": record.kind,
        "version": record.version,
        "seed": record.seed,
        "step": record.step,
        "config": record.config,
        "decision": None if decision is None else decision.model_dump(mode="json"),
        "inputs": {role: source.digest for role, source in record.inputs.items()},
        "external": {role: file.sha256 for role, file in record.external.items()},
    }


def _code(record: Record) -> dict[str, Json]:
    return record.provenance.model_dump(mode="json", exclude=MACHINE)
