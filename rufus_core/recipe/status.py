"""What a run of a graph would do with what a store holds. Nothing runs here and nothing is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from rufus_core.lineage.diff import FieldChange, field_changes
from rufus_core.lineage.names import record_id
from rufus_core.lineage.newest import newest
from rufus_core.lineage.record import Record
from rufus_core.lineage.store import Store
from rufus_core.recipe.documents import fingerprint_of
from rufus_core.recipe.spared import spared
from rufus_core.recipe.step import Step
from rufus_core.types import Frozen

Action = Literal["run", "reuse", "stale"]
BROKEN = "its files differ from its record"


class StepStatus(Frozen):
    """What becomes of one step.

    `reuse`: it is intact in the store. `stale`: the newest artifact of its name was made from something else, which
    `changes` tell, so it is made. `run`: it is made for another reason, `why`; with `unless`, only if one of those
    steps, which are made themselves, comes out different from before.
    """

    name: str
    title: str
    action: Action
    why: str = ""
    changes: tuple[FieldChange, ...] = ()
    unless: tuple[str, ...] = ()
    record: str | None = None  # id of what is reused or compared with
    seconds: float | None = None  # that the newest record of this name took; None where none says
    measured: datetime | None = None


class GraphStatus(Frozen):
    """`seconds` adds up the steps that are made for certain, `seconds_at_most` all that may be; known ones only."""

    steps: tuple[StepStatus, ...]
    seconds: float
    seconds_at_most: float
    num_unknown: int  # steps that may be made and whose seconds are not known


def graph_status(graph: Sequence[Step], store: Store) -> GraphStatus:
    """The status of each step that makes something, in the graph's order.

    Raises:
        LineageError: a record that a run would look at can't be read.
    """
    intact: dict[str, Record] = {}
    stand_ins = spared(graph, store)
    steps = []
    for step in graph:
        if step.artifact is not None:
            intact[step.name] = step.artifact
            continue
        found = _find(step, intact, store, stand_ins)
        if found is not None and not step.force:
            intact[step.name] = found
        steps.append(_status(step, intact, store))
    made = [step for step in steps if step.action != "reuse"]
    return GraphStatus(
        steps=tuple(steps),
        seconds=sum(step.seconds or 0.0 for step in made if not step.unless),
        seconds_at_most=sum(step.seconds or 0.0 for step in made),
        num_unknown=sum(step.seconds is None for step in made),
    )


def _find(step: Step, intact: Mapping[str, Record], store: Store, stand_ins: Mapping[str, Record]) -> Record | None:
    """The step's intact artifact; None also where an input has yet to be made, so that its fingerprint isn't known."""
    if not all(name in intact for name in step.inputs.values()):
        return None
    digests = {role: intact[name].digest for role, name in step.inputs.items()}
    key = fingerprint_of(step, digests)
    return store.find(step.name, key) or stand_ins.get(record_id(step.name, key))


def _status(step: Step, intact: Mapping[str, Record], store: Store) -> StepStatus:
    before = newest(store, step.name)
    seen = intact.get(step.name, before)
    timings = before.timings if before else None

    def status(
        action: Action, why: str = "", changes: tuple[FieldChange, ...] = (), unless: tuple[str, ...] = ()
    ) -> StepStatus:
        return StepStatus(
            name=step.name,
            title=step.title,
            action=action,
            why=why,
            changes=changes,
            unless=unless,
            record=seen.id if seen else None,
            seconds=timings.seconds if timings else None,
            measured=timings.ended if timings else None,
        )

    if step.name in intact:
        return status("reuse")
    if before is None:
        return status("run", "never made")
    if step.force:
        return status("run", "forced")
    changes = _changes(before, step, intact)
    if changes:
        return status("stale", changes=changes)
    unless = tuple(dict.fromkeys(name for name in step.inputs.values() if name not in intact))
    if not unless or store.find(before.name, before.fingerprint) is None:
        return status("run", BROKEN)
    return status("run", unless=unless)


def _changes(record: Record, step: Step, intact: Mapping[str, Record]) -> tuple[FieldChange, ...]:
    """In what the step differs from a record of its name. Inputs that are yet to be made count as equal."""
    before = {role: source.digest for role, source in record.inputs.items()}
    now = {
        role: intact[name].digest if name in intact else before.get(role, "yet to be made")
        for role, name in step.inputs.items()
    }
    old = {"version": record.version, "seed": record.seed, "config": record.config, "inputs": before}
    new = {"version": step.version, "seed": step.seed, "config": step.config, "inputs": now}
    return tuple(field_changes(old, new))
