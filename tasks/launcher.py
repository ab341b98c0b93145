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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import psutil

from rufus_core.lineage.files import locked, write_whole
from rufus_core.lineage.process import ProcessId
from tasks.children import Child

Progress = Callable[[Mapping[str, Any]], None]
Spawn = Callable[[IO[bytes]], Child]  # with the log that it writes to

POLL_SECONDS = 0.1
GRACE_SECONDS = 30.0  # a job may have a training step to end and its state to save
KILL_SECONDS = 10.0  # until what was killed is gone


class JobCancelled(Exception):
    """The job was ended because its run was told to stop; its attempt stays unpublished."""


class LocalJob:
    """A job whose files live in `folder`. `start` may be called again at any time: a living job is joined."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "job.log"
        self._handle_file = folder / "handle.json"
        self._child: Child | None = None

    def start(self, spawn: Spawn, prepare: Callable[[], None] | None = None) -> bool:
        """Start a job, or join the living one. True when it was joined.

        `prepare` runs only before a start: it may write files into the job's folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "handle.lock"):
            if self.handle() is not None:
                return True
            if prepare is not None:
                prepare()
            with self.log.open("ab") as log:
                self._child = spawn(log)
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
        """Block until the job ended, passing on its progress lines. The exit code, or None where nobody knows it.

        Raises JobCancelled after `cancelled` was set. The job is dead by then, also on Ctrl-C; it gets no time to save
        its state once `at_once` is set.
        """
        lines = tail(progress_file)
        try:
            while self._alive():
                _pass_on(lines, on_progress)
                if cancelled.wait(POLL_SECONDS):
                    raise JobCancelled
            _pass_on(lines, on_progress)
        except BaseException:
            self.cancel(at_once or threading.Event())
            raise
        return self._child.code if self._child else None

    def cancel(self, at_once: threading.Event) -> None:
        """SIGTERM to the job, a grace period that `at_once` ends, SIGKILL; it and its descendants are dead on return.

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

    def _alive(self) -> bool:
        return self._child.running() if self._child else self.handle() is not None


def tail(path: Path) -> Iterator[str | None]:
    """Complete lines of a growing file, None whenever there is none yet. A half-written last line waits."""
    position = 0
    while True:
        try:
            with path.open("rb") as file:
                file.seek(position)
                block = file.read()
        except FileNotFoundError:
            block = b""
        whole = block[: block.rfind(b"\n") + 1]
        position += len(whole)
        yield from whole.decode().splitlines()
        yield None


def _pass_on(lines: Iterator[str | None], on_progress: Progress) -> None:
    while (line := next(lines)) is not None:
        with suppress(json.JSONDecodeError):  # a killed attempt leaves half a line, and the next one writes on after it
            on_progress(json.loads(line))


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
