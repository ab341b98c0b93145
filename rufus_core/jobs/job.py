"""What a step's code gets, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rufus_core.jobs.document import JobDocument
from rufus_core.lineage.record import Decision, ExternalFile
from rufus_core.settings import ExecutionSettings
from rufus_core.training.reporter import Reporter


@dataclass(frozen=True, slots=True)
class Job:
    """A job being carried out. Files written under `output` become the artifact."""

    document: JobDocument
    output: Path
    execution: ExecutionSettings

    def input(self, role: str) -> Path:
        return self.document.inputs[role].path

    def use_threads(self) -> None:
        """Give torch the threads that this job may use."""
        import torch

        torch.set_num_threads(self.execution.threads)

    def report(self, total: int) -> Reporter:
        """Progress of this job, counted up to `total`."""
        return Reporter(self.document.progress, total)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the record says beside the document: results, and for a selection the decision."""

    metrics: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    decision: Decision | None = None
    external: dict[str, ExternalFile] = field(default_factory=dict)


Handler = Callable[[Job], Outcome]
