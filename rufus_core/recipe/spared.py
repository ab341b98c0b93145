"""Trainings whose unchosen steps were collected: a run makes them anew only if something reads them."""

from __future__ import annotations

from collections.abc import Sequence

from rufus_core.lineage.collected import read_collected
from rufus_core.lineage.names import step_of
from rufus_core.lineage.record import Record
from rufus_core.lineage.store import Store
from rufus_core.recipe.documents import fingerprint_of
from rufus_core.recipe.step import Step


def spared(graph: Sequence[Step], store: Store) -> dict[str, Record]:
    """Records by id of trainings of this graph that lack steps which nothing that must be made reads.

    Raises:
        LineageError: a record, or a note of what was collected, can't be read.
    """
    known = _known(graph, store)
    thinned = {name for name, record in known.items() if _is_thinned(store, record)}
    needed: set[str] = set()
    for step in reversed(graph) if thinned else ():
        record = known.get(step.name)
        if step.artifact is not None or (step.name in thinned and step.name not in needed and not step.force):
            continue
        if record is None or step.force or store.changes(record, trust_cache=True):
            needed.update(step.inputs.values())
    forced = {step.name for step in graph if step.force}
    return {known[name].id: known[name] for name in thinned - needed - forced}


def _known(graph: Sequence[Step], store: Store) -> dict[str, Record]:
    """Records of the steps whose fingerprint is known, intact or not."""
    known: dict[str, Record] = {}
    for step in graph:
        record = step.artifact
        if record is None and all(name in known for name in step.inputs.values()):
            digests = {role: known[name].digest for role, name in step.inputs.items()}
            key = fingerprint_of(step, digests)
            record = store.find(step.name, key, check=False)
        if record is not None:
            known[step.name] = record
    return known


def _is_thinned(store: Store, record: Record) -> bool:
    """Whether nothing but collected steps is missing."""
    note = read_collected(store.path(record)) if record.kind == "training" else None
    if note is None or note.elsewhere or any(step_of(path) is None for path in note.files):
        return False
    changes = store.changes(record, trust_cache=True)
    return bool(changes) and all(each.change == "missing" and each.path in note.files for each in changes)
