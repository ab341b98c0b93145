"""Runs a job as one of a Ray cluster's: submitted under an id that its folder says, joined when it lives.

The id ends in the number of the attempt, which `ray.json` in the folder counts before each submission. A run that comes
back asks the head for that id: a living job is joined, a dead or unknown one is followed by the next attempt. What runs
on unseen, because its head died, holds the artifact's lease, and the next attempt waits for that.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rufus_core.errors import InfrastructureError, JobLost, LineageError
from rufus_core.lineage.files import locked, write_whole
from rufus_core.settings import ExecutionSettings
from tasks.jobs import DOCUMENT, GRACE_SECONDS, LOG, JobCancelled, JobResources, Progress, pass_on, tail
from tasks.ray_entry import kill_file, stop_file
from tasks.ray_head import HeadSilent, RayHead, Submitted
from tasks.spawner import job_variables

COMMAND = ("python", "-m", "rufus_core.jobs")  # that of the node's image
POLL_SECONDS = 0.5
SILENT_SECONDS = 60.0  # a head that is started again may take that long, and its jobs live on if it has a database
CONFIRM_SECONDS = 60.0  # until what was killed is told to be dead
GO_ON = "the same command joins the job if it lives, or goes on from its last state"


class RayLauncher:
    def __init__(self, head: RayHead, execution: ExecutionSettings, command: Sequence[str] | None) -> None:
        self._head, self._execution, self._command = head, execution, tuple(command or COMMAND)

    def job(self, folder: Path, resources: JobResources) -> RayJob:
        return RayJob(folder.absolute(), self._head, resources, self._execution.threads, self._command)


@contextmanager
def ray_jobs(execution: ExecutionSettings, command: Sequence[str] | None) -> Iterator[RayLauncher]:
    assert execution.ray_dashboard is not None
    head = RayHead(execution.ray_dashboard)
    try:
        yield RayLauncher(head, execution, command)
    finally:
        head.close()


class RayJob:
    """The job of one folder; see `LaunchedJob`."""

    def __init__(
        self, folder: Path, head: RayHead, resources: JobResources, threads: int, command: tuple[str, ...]
    ) -> None:
        self.folder = folder
        self.log = folder / LOG
        self._head, self._resources, self._threads, self._command = head, resources, threads, command
        self._file = folder / "ray.json"

    def start(self, prepare: Callable[[], None]) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "ray.lock"):
            attempt = self._attempt()
            try:
                if attempt and self._lives(self._head.find(self._id(attempt))):
                    return True
                prepare()
                write_whole(self._file, json.dumps({"attempt": attempt + 1, "submission": self._id(attempt + 1)}))
                self._head.submit(self._id(attempt + 1), self._request(attempt + 1))
            except HeadSilent as silent:
                kind = JobLost if attempt else InfrastructureError
                raise kind(f"no Ray head answers: {silent}", where=self._head.url, hint=GO_ON) from silent
            return False

    def wait(
        self,
        progress_file: Path,
        on_progress: Progress,
        cancelled: threading.Event,
        at_once: threading.Event | None = None,
    ) -> int | None:
        lines = tail(progress_file)
        submission = self._id(self._attempt())
        heard = time.monotonic()
        try:
            while True:
                try:
                    found, heard = self._head.find(submission), time.monotonic()
                except HeadSilent as silent:
                    if time.monotonic() - heard > SILENT_SECONDS:
                        raise JobLost(f"the Ray head went away: {silent}", where=self._head.url, hint=GO_ON) from silent
                else:
                    if not self._lives(found):
                        pass_on(lines, on_progress)
                        return _exit_code(submission, found)
                pass_on(lines, on_progress)
                if cancelled.wait(POLL_SECONDS):
                    raise JobCancelled
        except JobLost:
            raise
        except BaseException:
            self.cancel(at_once or threading.Event())
            raise

    def cancel(self, at_once: threading.Event) -> None:
        attempt = self._attempt()
        if not attempt:
            return
        submission = self._id(attempt)
        try:
            if not self._lives(self._head.find(submission)):
                return
            stop_file(self.folder, attempt).touch()
            if not self._ended(submission, GRACE_SECONDS, at_once):
                kill_file(self.folder, attempt).touch()
                self._head.stop(submission)  # also one that never came to its entry
                if not self._ended(submission, CONFIRM_SECONDS, threading.Event()):
                    raise HeadSilent(f"it says of {submission} that it lives")
        except HeadSilent as silent:
            raise InfrastructureError(
                f"Ray doesn't confirm that the job is dead: {silent}", where=self._head.url, hint=GO_ON
            ) from silent

    def lives(self) -> bool:
        attempt = self._attempt()
        try:
            return attempt > 0 and self._lives(self._head.find(self._id(attempt)))
        except HeadSilent:
            return True

    def _ended(self, submission: str, seconds: float, at_once: threading.Event) -> bool:
        deadline = time.monotonic() + seconds
        while self._lives(self._head.find(submission)):
            if time.monotonic() > deadline or at_once.wait(POLL_SECONDS):
                return False
        return True

    def _lives(self, found: Submitted | None) -> bool:
        return found is not None and not found.ended

    def _attempt(self) -> int:
        """How many were submitted."""
        try:
            return int(json.loads(self._file.read_text())["attempt"])
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError) as error:  # to count anew could start a second job
            hint = "ask the head for a job of this folder that lives; then remove the file"
            raise LineageError("can't read which attempt is the last", where=str(self._file), hint=hint) from error

    def _id(self, attempt: int) -> str:
        """Two homes may use one cluster for the same artifact: where the folder lies is part of the id."""
        place = hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]
        return f"{self.folder.name}-{place}-{attempt}"

    def _request(self, attempt: int) -> dict[str, object]:
        ranked = self._resources.num_ranks > 1  # they ask for their own places
        entry = ["python", "-m", "tasks.ray_entry", str(self.folder), str(attempt)]
        return {
            "entrypoint": f"exec {shlex.join([*entry, *self._command, str(self.folder / DOCUMENT)])}",
            # What Ray's page shows: credentials come from the node's own environment.
            "runtime_env": {
                "env_vars": {**job_variables(self._threads), "RAY_JOB_STOP_WAIT_TIME_S": f"{GRACE_SECONDS:.0f}"}
            },
            "metadata": {"rufus": self.folder.name},
            "entrypoint_num_cpus": 1 if ranked else self._resources.cpus,  # never 0: Ray would put it on the head
            "entrypoint_num_gpus": 0 if ranked else self._resources.gpus_per_node,
        }


def _exit_code(submission: str, found: Submitted | None) -> int | None:
    """Raises JobLost where no process said how it ended."""
    if found is None:
        raise JobLost(f"the Ray cluster knows nothing of {submission}: its head was started anew", hint=GO_ON)
    if found.status == "SUCCEEDED":
        return 0
    if found.code is None and found.status == "FAILED":
        reason = next(iter(found.message.splitlines()), "it says no reason")
        raise JobLost(f"Ray lost the job {submission}: {reason}", hint=GO_ON)
    return found.code
