"""The trainings that an artifact came out of."""

from __future__ import annotations

from collections.abc import Iterator

from rufus_core.errors import LineageError
from rufus_core.lineage.record import Record
from rufus_core.lineage.store import Store

_ROLES = ("training", "parent", "checkpoint", "policy")  # the inputs that lead to an earlier policy


def training_of(store: Store, record: Record, stage: str | None = None) -> Record:
    """The training that made an artifact, or the one of `stage` that it goes back to.

    Raises:
        LineageError: there is none, or a record on the way is gone.
    """
    passed = []
    for training in _trainings(store, record):
        if stage in (None, training.stage):
            return training
        passed.append(training.stage or training.name)
    what = f"{record.id} goes back to no training" + (f" of {stage}" if stage else "")
    raise LineageError(what, hint=f"there are: {', '.join(passed)}" if passed else "name a stage's checkpoint")


def _trainings(store: Store, record: Record) -> Iterator[Record]:
    """The newest first."""
    while True:
        if record.kind == "training":
            yield record
        source = next((record.inputs[role] for role in _ROLES if role in record.inputs), None)
        if source is None:
            return
        parent = store.get(source.record_id)
        if parent is None:
            what = f"{record.id} was made from {source.record_id}, whose record is gone"
            raise LineageError(what, where=str(store.root), hint=f"rufus verify {record.name}")
        record = parent
