"""Carries out the steps of a recipe's graph: reuse what is intact, else run a job and read what it published."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rufus_core.errors import JobFailed, JobLost, LineageError, RufusError
from rufus_core.jobs.failure import forget_failure, told_failure
from rufus_core.lineage.cache import HashCache
from rufus_core.lineage.canonical import with_seed
from rufus_core.lineage.home import open_store
from rufus_core.lineage.names import artifact_label, record_id
from rufus_core.lineage.record import Record
from rufus_core.lineage.sharing import fetch, other_bytes, share
from rufus_core.ports.orchestration import RunObserver, StepOutcome
from rufus_core.ports.progress import StepProgress
from rufus_core.recipe.documents import document_of, fingerprint_of
from rufus_core.recipe.spared import spared
from rufus_core.recipe.step import Step
from rufus_core.settings import ExecutionSettings
from tasks.jobs import DOCUMENT, LOG, PROGRESS, JobCancelled, JobLauncher, JobResources
from tasks.retries import with_retries
from tasks.tracking import Tracker

_RAISED = re.compile(r"[\w.]+(Error|Exception|Exit)\b")  # a traceback's last line, but for an exception of many lines


class StepRunner:
    """Runs steps of one graph, each after its inputs; safe to call from several threads.

    Set `cancelled` to end every running job, and `at_once` to give none of them time to save its state. `around` is
    entered while a step's job runs, and gives its record's links.
    """

    def __init__(
        self,
        home: Path,
        execution: ExecutionSettings,
        tracker: Tracker,
        observer: RunObserver,
        launcher: JobLauncher,
        resources: Callable[[Step], JobResources],
        around: Callable[[Step], AbstractContextManager[Mapping[str, str]]],
    ) -> None:
        self.cancelled, self.at_once = threading.Event(), threading.Event()
        self._home, self._execution = home, execution
        self._tracker, self._observer = tracker, observer
        self._launcher, self._resources, self._around = launcher, resources, around
        self._store = open_store(home, HashCache(home / "hashes.json"))
        self._finding = threading.Lock()  # the cache of hashes belongs to one thread at a time
        self._records: dict[str, Record] = {}
        self._spared: dict[str, Record] = {}  # by id

    def spare(self, graph: Sequence[Step]) -> None:
        """Let records stand in for trainings whose collected steps nothing in this graph reads."""
        self._spared = spared(graph, self._store)

    def run(self, step: Step) -> StepOutcome:
        """Reuse the step's artifact or make it. A job's failure is an outcome; a bug raises."""
        try:
            outcome = self._reuse_or_make(step)
        except JobCancelled as cancelled:
            outcome = StepOutcome("cancelled", log=self.folder(step) / LOG, note=str(cancelled))
        except RufusError as error:
            outcome = StepOutcome("failed", error=str(error), log=self.folder(step) / LOG)
        self._observer.step_finished(step.name, outcome)
        return outcome

    def folder(self, step: Step) -> Path:
        """Of the step's job; known once its inputs are there."""
        return self._home / "jobs" / artifact_label(step.name, self._fingerprint(step))

    def _reuse_or_make(self, step: Step) -> StepOutcome:
        record = self._find(step)
        if record is None and step.artifact is not None:
            raise LineageError(f"{step.artifact.id} differs from its record", hint=f"rufus trace {step.artifact.id}")
        if record is not None and not step.force:
            record = self._records[step.name] = self._shared(record)
            return StepOutcome("reused", record.digest, record.id)
        before = record
        self._observer.step_started(step.name)
        key = self._tracker.step_started(step.name, step.title, with_seed(step.config, step.seed))
        status, error = "FAILED", "not finished"
        try:
            with self._around(step) as links:
                record, joined = self._make_surely(step, {**links, "mlflow.key": key})
            self._tracker.published(step.name, record)
            status, error = "FINISHED", ""
        except JobCancelled:
            status, error = "KILLED", "cancelled"
            raise
        except RufusError as failure:
            error = str(failure)
            raise
        finally:
            self._tracker.step_finished(step.name, status, error)
        self._records[step.name] = record
        log, note = self.folder(step) / LOG, _compared(before, record) if before else ""
        return StepOutcome("completed", record.digest, record.id, log=log, joined=joined, note=note)

    def _make_surely(self, step: Step, links: Mapping[str, str]) -> tuple[Record, bool]:
        return with_retries(
            lambda: self._make(step, links),
            self.folder(step) / "lost.jsonl",
            self._execution,
            self.cancelled,
            self._observer.warned,
        )

    def _make(self, step: Step, links: Mapping[str, str]) -> tuple[Record, bool]:
        """Run the step's job to its end; whether it was joined. Raises JobFailed and JobCancelled."""
        folder = self.folder(step)
        job = self._launcher.job(folder, self._resources(step))
        document, progress = folder / DOCUMENT, folder / PROGRESS

        def prepare() -> None:
            forget_failure(folder)
            progress.unlink(missing_ok=True)
            document_of(step, self._inputs(step), self._store, self._execution, progress, links).save(document)

        def on_progress(line: Mapping[str, Any]) -> None:
            if "warning" in line:
                self._observer.warned(f"{step.title}: {line['warning']}")
                return
            metrics = {name: float(value) for name, value in line.get("metrics", {}).items()}
            seen = StepProgress(line.get("step"), line.get("total"), metrics, line.get("message", ""))
            self._observer.step_progressed(step.name, seen)
            if seen.step is not None:
                self._tracker.progressed(step.name, seen.step, seen.metrics)

        if self.cancelled.is_set():
            raise JobCancelled
        joined = job.start(prepare)
        try:
            code = job.wait(progress, on_progress, self.cancelled, self.at_once)
        except JobCancelled:
            raise JobCancelled(_preempted(folder)) from None
        record = self._find(step)  # the record, not the exit code, says that a step is done
        if record is None or (step.force and code != 0):  # a forced step may find the record of before
            if why := _preempted(folder):  # by whom, nobody told us: only they know whether it should go on
                raise JobCancelled(why)
            raise _failure(step, folder, code)
        return self._shared(record), joined

    def _inputs(self, step: Step) -> dict[str, Record]:
        return {role: self._records[name] for role, name in step.inputs.items()}

    def _find(self, step: Step) -> Record | None:
        given = step.artifact
        wanted = (given.name, given.fingerprint) if given else (step.name, self._fingerprint(step))
        with self._finding:
            return self._store.find(*wanted) or self._spared.get(record_id(*wanted))

    def _shared(self, record: Record) -> Record:
        """A record whose bytes are here and at the shared root, if there is one; what was thinned out stays so."""
        if record.id in self._spared:
            return record
        told = share(self._store, record)
        if told.digest != record.digest:
            self._observer.warned(other_bytes(record, told))
        with self._finding:
            fetch(self._store, told)
        return told

    def _fingerprint(self, step: Step) -> str:
        return fingerprint_of(step, {role: record.digest for role, record in self._inputs(step).items()})


def _compared(before: Record, now: Record) -> str:
    """What came of making an intact artifact anew."""
    if now.digest == before.digest:
        return "the same bytes as before: its record stays"
    return f"other bytes than before: {before.digest[:12]} moved to replaced/"


def _preempted(folder: Path) -> str:
    """What a job said that was told to stop and kept its state, if it did."""
    told = told_failure(folder)
    return f"{told.what}; {told.hint}" if told and told.preempted else ""


def _failure(step: Step, folder: Path, code: int | None) -> JobFailed:
    """What the job said of its failure, else its last line, else how it ended."""
    if failure := told_failure(folder):
        return failure.as_error()
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in frozenset(signal.Signals) else f"signal {-code}"
        hint = "perhaps the machine ran out of memory" if name == "SIGKILL" else None
        return JobLost(f"the job of {step.name} was ended by {name}", hint=hint)
    told = (folder / LOG).read_text(errors="replace").splitlines()
    raised = next((line for line in reversed(told) if _RAISED.match(line)), None)
    if code is None and raised is None:  # nobody saw its end, and it says nothing of one: it was killed
        return JobLost(f"the job of {step.name} is gone and left no result")
    reason = raised or next((line for line in reversed(told) if line.strip()), "it wrote nothing")
    return JobFailed(f"the job of {step.name} ended without a result: {reason.strip()}")
