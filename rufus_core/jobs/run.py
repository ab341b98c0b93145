"""Carry out a job document: write aside, then publish with the record last."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import torch

from rufus_core.errors import RufusError
from rufus_core.jobs.base import build_base
from rufus_core.jobs.checkpoint import select_checkpoint
from rufus_core.jobs.document import JobDocument
from rufus_core.jobs.job import Handler, Job
from rufus_core.jobs.problems import build_problems
from rufus_core.jobs.reward_model import build_reward_model
from rufus_core.jobs.scores import score_checkpoint
from rufus_core.jobs.training import train_stage
from rufus_core.lineage.provenance import collect_provenance
from rufus_core.lineage.record import Draft, Input, Record, Timings
from rufus_core.lineage.store import Store
from rufus_core.settings import ExecutionSettings

HANDLERS: dict[str, Handler] = {
    "base": build_base,
    "problems": build_problems,
    "reward_model": build_reward_model,
    "training": train_stage,
    "checkpoint": select_checkpoint,
    "scores": score_checkpoint,
}


def run_job(document: JobDocument) -> Record:
    """Make the artifact and publish it. Raises what the step raises; nothing is published then."""
    execution = ExecutionSettings.model_validate(document.placement)
    torch.set_num_threads(execution.threads)
    store = Store(document.store)
    attempt = store.attempt(document.name, document.fingerprint)
    started = datetime.now(UTC)
    try:
        outcome = HANDLERS[document.kind](Job(document, attempt.folder, execution))
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
            provenance=collect_provenance(),
            timings=Timings(started=started, ended=ended, seconds=(ended - started).total_seconds()),
            links=document.links,
        )
        return store.publish(attempt, draft)
    except BaseException:
        attempt.discard()
        raise


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
