"""Runs a job as a local process group: started at most once, joined when it lives, cancelled for certain.

A job runs in its own session with its output in a file, so it outlives whoever started it. `handle.json` beside the
job's document says which process it is. A job that another home or another host runs is none to join here: the one
that is started waits for its lease.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO

import psutil

from rufus_core.lineage.files import locked, write_whole
from rufus_core.lineage.process import ProcessId
from rufus_core.settings import ExecutionSettings
from tasks.children import Child
from tasks.jobs import DOCUMENT, GRACE_SECONDS, LOG, JobCancelled, JobResources, Progress, pass_on, tail
from tasks.spawner import Spawner

Spawn = Callable[[IO[bytes]], Child]  # with the log that it writes to

POLL_SECONDS = 0.1
KILL_SECONDS = 10.0  # until what was killed is gone


class LocalLauncher:
    """Starts jobs on this machine, and leaves what they take of it to whoever starts them."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner

    def job(self, folder: Path, resources: JobResources) -> LocalJob:  # noqa: ARG002
        return LocalJob(folder, partial(self._spawner.spawn, folder / DOCUMENT))


@contextmanager
def local_jobs(execution: ExecutionSettings, command: Sequence[str] | None) -> Iterator[LocalLauncher]:
    """Jobs are forked from a warm server; with a `command` they are programs of their own."""
    with Spawner(execution.threads, command) as spawner:
        yield LocalLauncher(spawner)


class LocalJob:
    """A job whose files live in `folder`. `start` may be called again at any time: a living job is joined."""

    def __init__(self, folder: Path, spawn: Spawn) -> None:
        self.folder = folder
        self.log = folder / LOG
        self._spawn = spawn
        self._handle_file = folder / "handle.json"
        self._child: Child | None = None

    def start(self, prepare: Callable[[], None]) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "handle.lock"):
            if self.handle() is not None:
                return True
            prepare()
            with self.log.open("ab") as log:
                self._child = self._spawn(log)
            write_whole(self._handle_file, json.dumps(asdict(self._child.id)))
            self._child.begin()
            return False

    def handle(self) -> ProcessId | None:
        """The handle of the living job, if one lives."""
        try:
            handle = ProcessId(**json.loads(self._handle_file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):  # also a handle that a full disk cut off
            return None
        return handle if handle.find() else None

    def wait(
        self,
        progress_file: Path,
        on_progress: Progress,
        cancelled: threading.Event,
        at_once: threading.Event | None = None,
    ) -> int | None:
        lines = tail(progress_file)
        try:
            while self._alive():
                pass_on(lines, on_progress)
                if cancelled.wait(POLL_SECONDS):
                    raise JobCancelled
            pass_on(lines, on_progress)
        except BaseException:
            self.cancel(at_once or threading.Event())
            raise
        return self._child.code if self._child else None

    def cancel(self, at_once: threading.Event) -> None:
        """SIGTERM to the job, a grace period, SIGKILL to it and its descendants.

        What the job started hears no SIGTERM: the job needs it to end its step as it would have.
        """
        handle = self.handle()
        leader = handle.find() if handle else None
        if handle is None or leader is None:
            return
        family = {leader, *leader.children(recursive=True)}
        with suppress(psutil.NoSuchProcess):
            leader.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        while (left := deadline - time.monotonic()) > 0 and not at_once.is_set():
            with suppress(psutil.NoSuchProcess):
                family.update(leader.children(recursive=True))
            if not psutil.wait_procs([leader], timeout=min(left, POLL_SECONDS))[1]:
                break
        _kill_group(handle.pid)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=KILL_SECONDS)

    def lives(self) -> bool:
        return self.handle() is not None

    def _alive(self) -> bool:
        return self._child.running() if self._child else self.handle() is not None


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
