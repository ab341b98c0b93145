"""Reproduce: make an artifact anew from its records alone, in a store of its own, and compare the bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from rufus_core.errors import LineageError
from rufus_core.jobs.document import InputArtifact, JobDocument
from rufus_core.jobs.failure import told_failure
from rufus_core.lineage.adopt import ADOPTED
from rufus_core.lineage.canonical import fingerprint, with_seed
from rufus_core.lineage.digest import FileChange, compare_files
from rufus_core.lineage.external import intact_external
from rufus_core.lineage.names import artifact_label
from rufus_core.lineage.record import Provenance, Record
from rufus_core.lineage.sharing import fetch
from rufus_core.lineage.store import Store
from rufus_core.settings import ExecutionSettings
from rufus_core.types import Frozen

_POLL_SECONDS = 0.2


class Rebuilt(Frozen):
    """One artifact, made anew or (`taken`) used as the store holds it."""

    record_id: str
    result: Literal["identical", "different", "failed", "taken"]
    recorded: str  # digest
    found: str | None = None
    changes: tuple[FileChange, ...] = ()  # in order of path
    error: str = ""
    seconds: float = 0.0


class Reproduction(Frozen):
    """Steps in the order in which they were made; the last is what was asked for, unless it was never reached."""

    root: str
    drift: tuple[str, ...]  # what of code and packages isn't what the records say
    steps: tuple[Rebuilt, ...]

    @property
    def identical(self) -> bool:
        """Whether what was asked for was made anew, and it and all it was made from came out the same."""
        reached = bool(self.steps) and self.steps[-1].record_id == self.root
        return reached and all(step.result in ("identical", "taken") for step in self.steps)


class Watcher(Protocol):
    def started(self, record: Record, number: int, total: int) -> None: ...

    def progressed(self, done: int, total: int) -> None: ...

    def finished(self, step: Rebuilt) -> None: ...


def reproduce(
    store: Store, root: Record, scratch: Path, watcher: Watcher, only: bool = False, until_differs: bool = False
) -> Iterator[Rebuilt]:
    """Make an artifact and its ancestors anew under `scratch`; `store` is only read.

    Args:
        only: make this one artifact, from its inputs as the store holds them.
        until_differs: stop at the first artifact that differs. Otherwise what follows is made from what came out.

    Raises:
        LineageError: a record, an input or a data file that is needed is gone or changed.
    """
    order = [root] if only else ancestry(store, root)
    for record in order:  # before anything is made, which may take hours
        for file in record.external.values() if ADOPTED not in record.config else ():
            intact_external(file)
    made: dict[str, tuple[Record, Path]] = {}
    for number, record in enumerate(order, start=1):
        watcher.started(record, number, len(order))
        if only:
            made |= {id_: _intact(store, id_) for id_ in (source.record_id for source in record.inputs.values())}
        if ADOPTED in record.config:
            made[record.id] = _intact(store, record.id)
            step = Rebuilt(record_id=record.id, result="taken", recorded=record.digest, found=record.digest)
        else:
            step, fresh = _rebuild(record, made, scratch, watcher)
            if fresh is not None:
                made[record.id] = (fresh, Store(scratch / "store").path(fresh))
        watcher.finished(step)
        yield step
        if step.result == "failed" or (until_differs and step.result == "different"):
            return


def ancestry(store: Store, root: Record) -> list[Record]:
    """An artifact and all it was made from, each after its inputs. Raises LineageError where a record is gone."""
    order: dict[str, Record] = {}

    def visit(record: Record) -> None:
        if record.id in order:
            return
        for source in record.inputs.values():
            parent = store.get(source.record_id)
            if parent is None:
                what = f"{record.id} was made from {source.record_id}, whose record is gone"
                raise LineageError(what, where=str(store.root), hint=f"rufus verify {record.name}")
            if ADOPTED not in record.config:  # its parent is a claim, and no part of how it is had
                visit(parent)
        order[record.id] = record

    visit(root)
    return list(order.values())


def drift(records: Sequence[Record], now: Provenance, versions: Mapping[str, str]) -> tuple[str, ...]:
    """What of code and packages isn't what these records say. `versions` are the declared ones, by kind."""
    lines: dict[str, None] = {}
    for record in records:
        then = record.provenance
        for what, old, new in (
            ("commit", then.commit, now.commit),
            ("uncommitted changes", then.dirty_diff_sha256, now.dirty_diff_sha256),
            ("lock file", then.lock_sha256, now.lock_sha256),
            ("Python", then.python, now.python),
            ("image", then.image, now.image),
            *((name, old, now.packages.get(name)) for name, old in then.packages.items()),
        ):
            if old != new:
                lines[f"{what}: {_short(old)} then, {_short(new)} now"] = None
        if record.schema_version == 1 and record.kind == "problems":
            lines["records of version 1 don't keep the order of data sources, on which a mixture depends"] = None
        declared = versions.get(record.kind)
        if declared is not None and declared != record.version:
            lines[f"{record.kind} steps: version {record.version} then, {declared} now"] = None
    return tuple(lines)


def _short(value: str | None) -> str:
    return "none" if not value else value[:12]


def _intact(store: Store, record_id: str) -> tuple[Record, Path]:
    record = store.get(record_id)
    if record is not None:
        fetch(store, record)
    if record is None or store.changes(record):
        what = f"{record_id} is not in the store as its record says"
        raise LineageError(what, where=str(store.root), hint=f"rufus verify {record_id}")
    return record, store.path(record)


def _rebuild(
    record: Record, made: Mapping[str, tuple[Record, Path]], scratch: Path, watcher: Watcher
) -> tuple[Rebuilt, Record | None]:
    started = time.monotonic()
    folder = scratch / "jobs" / artifact_label(record.name, record.fingerprint)
    document = _document(record, made, scratch, folder)
    same_inputs = all(made[source.record_id][0].digest == source.digest for source in record.inputs.values())
    if same_inputs and document.fingerprint != record.fingerprint:
        raise LineageError(
            "this record's fingerprint isn't that of its settings and inputs", where=record.id, hint="rufus verify"
        )
    document.save(folder / "document.json")
    code = _carry_out(folder, document, watcher)
    fresh = Store(document.store).find(document.name, document.fingerprint, check=False)
    seconds = time.monotonic() - started
    if fresh is None:
        error = _failure(folder, code)
        lost = Rebuilt(record_id=record.id, result="failed", recorded=record.digest, error=error, seconds=seconds)
        return lost, None
    step = Rebuilt(
        record_id=record.id,
        result="identical" if fresh.digest == record.digest else "different",
        recorded=record.digest,
        found=fresh.digest,
        changes=compare_files(record.files, fresh.files),
        seconds=seconds,
    )
    return step, fresh


def _document(record: Record, made: Mapping[str, tuple[Record, Path]], scratch: Path, folder: Path) -> JobDocument:
    """The job that the record tells of, with what was made anew as its inputs, and with the data files as they were."""
    inputs = {role: InputArtifact.of(*made[source.record_id]) for role, source in record.inputs.items()}
    digests = {role: artifact.digest for role, artifact in inputs.items()}
    return JobDocument(
        name=record.name,
        kind=record.kind,
        title=record.name,
        version=record.version,
        fingerprint=fingerprint(record.kind, record.version, with_seed(record.config, record.seed), digests),
        config=record.config,
        stage=record.stage,
        inputs=inputs,
        external={role: str(intact_external(file)) for role, file in record.external.items()},
        seed=record.seed or 0,
        store=scratch / "store",
        placement=record.placement,
        progress=folder / "progress.jsonl",
    )


def _carry_out(folder: Path, document: JobDocument, watcher: Watcher) -> int:
    """Run the job in a process of its own, as a run does. It dies with us."""
    threads = str(ExecutionSettings.model_validate(document.placement).threads)
    pinned = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    env = {**os.environ, **pinned, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "rufus_core.jobs", str(folder / "document.json")]
    with (folder / "job.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603  (an argument list, no shell)
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env
        )
        try:
            while True:
                try:
                    return process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    watcher.progressed(*_last_progress(document.progress))
        finally:
            process.kill()
            process.wait()


def _last_progress(file: Path) -> tuple[int, int]:
    """(step, total) of the newest whole line; zeros while there is none."""
    try:
        told = json.loads(file.read_text(encoding="utf-8").rpartition("\n")[0].rpartition("\n")[2])
        return int(told["step"] or 0), int(told["total"] or 0)
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0


def _failure(folder: Path, code: int) -> str:
    if told := told_failure(folder):
        return told.what
    lines = (folder / "job.log").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), f"its job ended with exit code {code}")
