"""What a step's code gets, and what it gives back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rufus_core.jobs.document import JobDocument
from rufus_core.lineage.record import Decision, ExternalFile
from rufus_core.settings import ExecutionSettings
from rufus_core.training.reporter import Reporter


@dataclass(frozen=True, slots=True)
class Job:
    """A job being carried out.

    Files written under `output` become the artifact. `state` is for what a later job of the same fingerprint goes on
    from if this one dies; where it holds something, `output` too is as the dead job left it.
    """

    document: JobDocument
    output: Path
    state: Path
    execution: ExecutionSettings

    def input(self, role: str) -> Path:
        return self.document.inputs[role].path

    def use_threads(self) -> None:
        """Give torch the threads that this job may use."""
        import torch

        torch.set_num_threads(self.execution.threads)

    @contextmanager
    def stoppable(self) -> Iterator[threading.Event]:
        """Within, SIGTERM sets the event instead of ending the process: save the state, then raise Preempted."""
        stop = threading.Event()
        before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
        try:
            yield stop
        finally:
            signal.signal(signal.SIGTERM, before)

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
