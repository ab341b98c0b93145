"""What a user means by the name of a checkpoint."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rufus_core.errors import LineageError
from rufus_core.lineage.aliases import Aliases, Pointer
from rufus_core.lineage.names import is_hex, split_record_id, step_folder, step_of
from rufus_core.lineage.newest import clock_warning, newest_first
from rufus_core.lineage.record import Record

if TYPE_CHECKING:
    from rufus_core.lineage.store import Store

MIN_DIGEST_DIGITS = 6
_STAGE_STEP = re.compile(r"(?P<stage>[A-Za-z0-9_-]+)[@:](?P<step>\d+)")


@dataclass(frozen=True, slots=True)
class Ref:
    """An artifact, or a folder inside it (a step of a training run).

    `warnings` are records that can't be read and may be newer, or a time of publishing that can't be true.
    """

    record: Record
    folder: Path
    subfolder: str = ""
    step: int | None = None
    warnings: tuple[str, ...] = ()


def resolve(store: Store, text: str) -> Ref:
    """The artifact a user names.

    Args:
        text: a stage (its newest checkpoint), `stage@12` or `stage:12` (step 12 of its newest training run that kept
            it), at least 6 digits of a digest, an artifact's name (its newest), a record's id, or an alias: `rufus-air`
            (the last stage's checkpoint of the last run), `rufus-air@sft`.

    Raises:
        LineageError: unknown (with the nearest names), ambiguous (with what it could be) or unreadable.
    """
    stepped = _STAGE_STEP.fullmatch(text)
    if stepped:
        return _step(store, stepped["stage"], int(stepped["step"]))
    names = store.names()
    if split_record_id(text):
        record = store.get(text)
        if record is None:
            raise _unknown(store, text, names)
        return _whole(store, record)
    for name in (checkpoint_name(text), text):
        if name in names:
            return _newest(store, name)
    pointer = Aliases(store.root).find(text)
    if pointer:
        return _pointed(store, pointer)
    if training_name(text) in names:
        raise LineageError(f"{text} has no published checkpoint yet", hint=_steps_hint(store, text))
    prefix = text.lower()
    if is_hex(prefix) and MIN_DIGEST_DIGITS <= len(prefix) <= 64:
        found = _by_digest(store, prefix)
        if found:
            return found
    raise _unknown(store, text, names)


def checkpoint_name(stage: str) -> str:
    return f"stages/{stage}/checkpoint"


def training_name(stage: str) -> str:
    return f"stages/{stage}/train"


def steps_of(record: Record) -> list[int]:
    """Steps whose weights a training run kept."""
    return sorted({step for path in record.files if (step := step_of(path)) is not None})


def _whole(store: Store, record: Record, warnings: tuple[str, ...] = ()) -> Ref:
    return Ref(record, store.path(record), step=record.step, warnings=warnings)


def _pointed(store: Store, pointer: Pointer) -> Ref:
    record = store.get(pointer.record_id)
    if record is None or record.digest != pointer.digest:
        there = f"holds {record.digest[:12]} there" if record else "no longer has it"
        what = f"{pointer.alias} is {pointer.record_id} with digest {pointer.digest[:12]}, and this store {there}"
        raise LineageError(what, hint="`rufus run` makes it again")
    return _whole(store, record)


def _newest(store: Store, name: str) -> Ref:
    faults: list[LineageError] = []
    for each in newest_first(store, name):
        if isinstance(each, Record):
            return _whole(store, each, _warnings(each, faults))
        faults.append(each)
    raise faults[0] if faults else LineageError(f"{name} has no record", where=str(store.root))


def _warnings(newest: Record, faults: Sequence[LineageError]) -> tuple[str, ...]:
    return tuple(filter(None, (*map(str, faults), clock_warning(newest))))


def _step(store: Store, stage: str, step: int) -> Ref:
    faults: list[LineageError] = []
    trained = False
    for each in newest_first(store, training_name(stage)):
        if isinstance(each, LineageError):
            faults.append(each)
        elif step in steps_of(each):
            subfolder = step_folder(step)
            return Ref(each, store.path(each) / subfolder, subfolder, step, _warnings(each, faults))
        else:
            trained = True
    if trained:
        raise LineageError(f"{stage} kept no weights of step {step}", hint=_steps_hint(store, stage))
    if faults:
        raise faults[0]
    raise _unknown(store, stage, store.names())


def _steps_hint(store: Store, stage: str) -> str:
    steps = sorted({step for record in store.records(training_name(stage)) for step in steps_of(record)})
    return f"it kept steps {', '.join(map(str, steps))}: try {stage}@{steps[-1]}" if steps else "it kept no step"


def _by_digest(store: Store, prefix: str) -> Ref | None:
    marked = [store.get(record_id) for record_id in store.ids_by_digest(prefix)]
    # A mark may be stale (of an artifact that was replaced, or never came) or lost: the records are the truth.
    records = [record for record in marked if record is not None] or store.records()
    found = {record.id: record for record in records if record.digest.startswith(prefix)}
    if len(found) > 1:
        choices = ", ".join(f"{record.digest[:12]} {key}" for key, record in sorted(found.items()))
        raise LineageError(f"{prefix} could be any of: {choices}", hint="give more digits, or the id")
    return _whole(store, next(iter(found.values()))) if found else None


def _unknown(store: Store, text: str, names: list[str]) -> LineageError:
    if not names:
        return LineageError(
            f"can't find {text!r}: this store is empty",
            where=str(store.root),
            hint="make checkpoints with `rufus run`, or name another home with --home or RUFUS_HOME",
        )
    stages = [name.split("/")[1] for name in names if re.fullmatch(r"stages/[^/]+/checkpoint", name)]
    near = difflib.get_close_matches(text, [*stages, *names], n=3, cutoff=0.5)
    known = near or stages or names
    lead = "nearest" if near else "there are"
    return LineageError(f"no checkpoint {text!r}", where=str(store.root), hint=f"{lead}: {', '.join(known[:8])}")
