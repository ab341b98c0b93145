"""Carry out a job document: write aside, then publish with the record last."""

from __future__ import annotations

import functools
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from rufus_core.errors import InfrastructureError, LeaseHeld, LeaseLost, LineageError, Preempted, RufusError
from rufus_core.jobs.document import JobDocument
from rufus_core.jobs.failure import tell_failure
from rufus_core.jobs.job import Handler, Job
from rufus_core.lineage.attempt import Attempt
from rufus_core.lineage.claims import abandon, claim, tidy
from rufus_core.lineage.crash_points import CrashPoint, pass_by
from rufus_core.lineage.digest import RECORD_FILE
from rufus_core.lineage.files import machine_hint
from rufus_core.lineage.lease import Lease
from rufus_core.lineage.provenance import Code, collect_code
from rufus_core.lineage.record import Draft, Input, Record, Timings
from rufus_core.lineage.shared_lease import SharedLease
from rufus_core.lineage.sharing import other_bytes, share
from rufus_core.lineage.store import Store
from rufus_core.settings import ExecutionSettings
from rufus_core.training.reporter import Reporter

Held = TypeVar("Held")

WAIT_SECONDS = 0.5  # between two looks at a lease that another job holds
KINDS = ("base", "problems", "screen", "reward_model", "training", "checkpoint", "scores")


@functools.cache
def running_code() -> Code:
    """What this process runs: noted once, for the files may change while it runs."""
    return collect_code()


def preload() -> None:
    """Import what the jobs need, and note what is imported: for a process that forks them.

    Runs no operator of torch, whose threads a fork doesn't take along.
    """
    import reasoning_gym  # noqa: F401 (generators import it late)

    running_code()
    for kind in KINDS:
        handler(kind)


def handler(kind: str) -> Handler:
    """The code that makes this kind of artifact. Only the code that is needed is imported: torch takes seconds."""
    match kind:
        case "base":
            from rufus_core.jobs.base import build_base

            return build_base
        case "problems":
            from rufus_core.jobs.problems import build_problems

            return build_problems
        case "screen":
            from rufus_core.jobs.screen import screen_problems

            return screen_problems
        case "reward_model":
            from rufus_core.jobs.reward_model import build_reward_model

            return build_reward_model
        case "training":
            from rufus_core.jobs.training import train_stage

            return train_stage
        case "checkpoint":
            from rufus_core.jobs.checkpoint import select_checkpoint

            return select_checkpoint
        case "scores":
            from rufus_core.jobs.scores import score_checkpoint

            return score_checkpoint
        case _:
            raise LineageError(f"no step makes artifacts of kind {kind!r}")


def run_job(document: JobDocument, leave: Callable[[RufusError], None] | None = None) -> Record:
    """Make the artifact and publish it, or wait for the living job that makes it. Raises what the step raises.

    An attempt that failed is discarded, for its state may be what it failed by. One that was stopped, or that the
    machine failed, stays if it has state: the next job goes on from there.

    Args:
        leave: ends the process at once when its lease was lost; by default with a line in its output.
    """
    make = handler(document.kind)
    execution = ExecutionSettings.model_validate(document.placement)
    store = document.open_store()
    pass_by(CrashPoint.BEFORE_LEASE)
    lease = _waited(lambda: store.lease(document.name, document.fingerprint), document)

    def stop(error: LeaseLost) -> None:
        abandon(store, lease)
        (leave or _leave)(error)

    with _held(lease, stop), _shared_lease(store, document, stop) as shared:
        pass_by(CrashPoint.AFTER_LEASE)
        # Made meanwhile, or before a crash.
        record = None if document.force else store.find(document.name, document.fingerprint)
        if record is None:
            _require_inputs(document)
            attempt = claim(store, lease)
            tidy(store, lease)
            record = _make(document, execution, make, store, lease, attempt)
        else:
            tidy(store, lease)
        told = share(store, record, shared)
        if told.digest != record.digest:
            print(f"warning: {other_bytes(record, told)}", flush=True)
        pass_by(CrashPoint.BEFORE_RELEASE)
        return told


def _make(
    document: JobDocument, execution: ExecutionSettings, make: Handler, store: Store, lease: Lease, attempt: Attempt
) -> Record:
    started, clock = datetime.now(UTC), time.monotonic()
    pass_by(CrashPoint.ATTEMPT)
    try:
        outcome = make(Job(document, attempt.folder, attempt.state, execution))
    except BaseException as error:
        if not (_may_go_on(error) and attempt.has_state()):
            attempt.discard()
        raise
    seconds = time.monotonic() - clock  # the wall's clock may be set meanwhile
    running_code().keep_diff(store.root)
    draft = Draft(
        kind=document.kind,
        version=document.version,
        stage=document.stage,
        step=outcome.step,
        config=document.config,
        placement=document.placement,
        inputs={
            role: Input(name=i.name, digest=i.digest, record_id=i.record_id) for role, i in document.inputs.items()
        },
        external=outcome.external,
        seed=document.seed,
        decision=outcome.decision,
        metrics=outcome.metrics,
        provenance=running_code().provenance,
        timings=Timings(started=started, ended=started + timedelta(seconds=seconds), seconds=seconds),
        links=document.links,
    )
    try:
        return store.publish(attempt, draft, lease, document.force)  # if the disk is full, the attempt stays
    except LeaseLost:
        attempt.discard()
        raise


@contextmanager
def _held(lease: Lease | SharedLease, stop: Callable[[LeaseLost], None]) -> Iterator[None]:
    """Within, beats are counted; then the lease is released."""
    try:
        with lease.renewed(stop):
            yield
    finally:
        with suppress(LineageError, InfrastructureError):  # on a full disk; without its process the lease is free
            lease.release()


@contextmanager
def _shared_lease(
    store: Store, document: JobDocument, stop: Callable[[LeaseLost], None]
) -> Iterator[SharedLease | None]:
    """The lease at the shared root, held; None without one."""
    if store.shared is None:
        yield None
        return
    shared = store.shared
    lease = _waited(lambda: shared.lease(document.name, document.fingerprint), document)
    with _held(lease, stop):
        yield lease


def _waited(take: Callable[[], Held], document: JobDocument) -> Held:
    """A lease; waits while a living job has it: one of another home of this store, or of another host."""
    told = ""
    while True:
        try:
            return take()
        except LeaseHeld as held:
            if held.what != told:
                told = held.what
                print(f"waiting: {held}", flush=True)
                with Reporter(document.progress, 0) as report:
                    report.say(held.what)
            time.sleep(WAIT_SECONDS)


def _require_inputs(document: JobDocument) -> None:
    """Raises LineageError for an input that vanished since the job was planned."""
    for role, one in document.inputs.items():
        if not (one.path / RECORD_FILE).exists():
            raise LineageError(
                f"the {role} {one.record_id} is gone from the store",
                where=str(one.path),
                hint="run the same command again: it makes what is missing",
            )


def _may_go_on(error: BaseException) -> bool:
    """Whether the same state may lead further another time: it was told to stop, or the machine failed."""
    if isinstance(error, Preempted | InfrastructureError):
        return True
    return any(isinstance(each, OSError) and machine_hint(each) is not None for each in (error, error.__cause__))


def _leave(error: RufusError) -> None:
    print(f"error: {error}", flush=True)
    os._exit(error.exit_code)  # whatever the other threads do


@contextmanager
def _refusals_told(store: Path) -> Iterator[None]:
    """Turns what the machine refuses (a full disk, say) into an InfrastructureError."""
    try:
        yield
    except OSError as error:
        hint = machine_hint(error)
        if hint is None:
            raise
        traceback.print_exc()  # to the log: which write it was
        what = f"the job stopped: {error.strerror}"
        raise InfrastructureError(what, where=error.filename or str(store), hint=hint) from error


def main(path: Path) -> int:
    """Run the job of a document file. A RufusError is left beside it as `error.json`, for whoever started the job."""

    def leave(error: RufusError) -> None:
        tell_failure(path.parent, error)
        _leave(error)

    try:
        document = JobDocument.load(path)
        with _refusals_told(document.store):
            run_job(document, leave)
    except RufusError as error:
        tell_failure(path.parent, error)
        print(f"error: {error}", flush=True)
        return error.exit_code
    return 0
