"""From a step of the graph to the job document that makes its artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rufus_core.jobs.document import InputArtifact, JobDocument
from rufus_core.lineage.canonical import fingerprint, with_seed
from rufus_core.lineage.record import Record
from rufus_core.lineage.store import Store
from rufus_core.recipe.step import Step
from rufus_core.settings import ExecutionSettings


def fingerprint_of(step: Step, digests: Mapping[str, str]) -> str:
    """What a step's artifact is known by; `digests` are those of its inputs, by role."""
    return fingerprint(step.kind, step.version, with_seed(step.config, step.seed), digests)


def document_of(
    step: Step,
    inputs: Mapping[str, Record],
    store: Store,
    execution: ExecutionSettings,
    progress: Path,
    links: Mapping[str, str] | None = None,
) -> JobDocument:
    """The document of a step whose inputs, by role, are in the store. The job reports to the file `progress`."""
    return JobDocument(
        name=step.name,
        kind=step.kind,
        title=step.title,
        version=step.version,
        fingerprint=fingerprint_of(step, {role: record.digest for role, record in inputs.items()}),
        config=step.config,
        stage=step.stage,
        inputs={role: InputArtifact.of(record, store.path(record)) for role, record in inputs.items()},
        external=step.external,
        seed=step.seed,
        store=store.root,
        shared=store.shared.url if store.shared else None,
        placement=execution.for_step(step.kind, step.compute).model_dump(mode="json"),
        progress=progress,
        links=dict(links or {}),
        force=step.force,
    )
