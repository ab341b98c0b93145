"""Carry out a job document: write aside, then publish with the record last."""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime
from pathlib import Path

from rufus_core.errors import LineageError, RufusError
from rufus_core.jobs.document import JobDocument
from rufus_core.jobs.job import Handler, Job
from rufus_core.lineage.provenance import collect_provenance
from rufus_core.lineage.record import Draft, Input, Provenance, Record, Timings
from rufus_core.lineage.store import Store
from rufus_core.settings import ExecutionSettings

KINDS = ("base", "problems", "reward_model", "training", "checkpoint", "scores")


@functools.cache
def code_provenance() -> Provenance:
    """What this process runs: noted once, for the files may change while it runs."""
    return collect_provenance()


def preload() -> None:
    """Import what the jobs need, and note what is imported: for a process that forks them.

    Runs no operator of torch, whose threads a fork doesn't take along.
    """
    import reasoning_gym  # noqa: F401 (generators import it late)

    code_provenance()
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


def run_job(document: JobDocument) -> Record:
    """Make the artifact and publish it. Raises what the step raises; nothing is published then."""
    make = handler(document.kind)
    execution = ExecutionSettings.model_validate(document.placement)
    store = Store(document.store)
    for dead in store.leftover_attempts():  # of killed jobs: no step resumes inside one, and each may hold weights
        dead.discard()
    attempt = store.attempt(document.name, document.fingerprint)
    started = datetime.now(UTC)
    try:
        outcome = make(Job(document, attempt.folder, attempt.state, execution))
    except BaseException:
        attempt.discard()
        raise
    ended = datetime.now(UTC)
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
        provenance=code_provenance(),
        timings=Timings(started=started, ended=ended, seconds=(ended - started).total_seconds()),
        links=document.links,
    )
    return store.publish(attempt, draft)  # if the disk is full, the attempt stays


def main(path: Path) -> int:
    """Run the job of a document file. A RufusError is left beside it as `error.json`, for whoever started the job."""
    try:
        run_job(JobDocument.load(path))
    except RufusError as error:
        told = {"type": type(error).__name__, "what": error.what, "where": error.where, "hint": error.hint}
        (path.parent / "error.json").write_text(json.dumps(told), encoding="utf-8")
        print(f"error: {error}", flush=True)
        return error.exit_code
    return 0
