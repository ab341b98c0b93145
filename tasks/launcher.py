"""Runs a job as a local process group: started at most once, joined when it lives, cancelled for certain.

A job runs in its own session with its output in a file, so it outlives whoever started it. `handle.json` beside the
job's document says which process it is (pid and start time: a pid alone may be reused).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import psutil

from tasks.children import Child
from tasks.processes import ProcessId

Progress = Callable[[Mapping[str, Any]], None]
Spawn = Callable[[IO[bytes]], Child]  # with the log that it writes to

POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0


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
        with _locked(self.folder / "handle.lock"):
            if self._handle() is not None:
                return True
            if prepare is not None:
                prepare()
            with self.log.open("ab") as log:
                self._child = spawn(log)
            _write(self._handle_file, asdict(self._child.id))
            self._child.begin()
            return False

    def wait(self, progress_file: Path, on_progress: Progress, cancelled: threading.Event) -> int | None:
        """Block until the job ended, passing on its progress lines. The exit code, or None where nobody knows it.

        Raises JobCancelled after `cancelled` was set. The job is dead by then, also on Ctrl-C.
        """
        lines = tail(progress_file)
        try:
            while self._alive():
                _pass_on(lines, on_progress)
                if cancelled.wait(POLL_SECONDS):
                    raise JobCancelled
            _pass_on(lines, on_progress)
        except BaseException:
            self.cancel()
            raise
        return self._child.code if self._child else None

    def cancel(self) -> None:
        """SIGTERM to the job's group, a grace period, SIGKILL; the job and its descendants are dead on return."""
        handle = self._handle()
        leader = handle.find() if handle else None
        if handle is None or leader is None:
            return
        family = [leader, *leader.children(recursive=True)]
        _signal_group(handle.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=GRACE_SECONDS)
        _signal_group(handle.pid, signal.SIGKILL)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=GRACE_SECONDS)

    def _handle(self) -> ProcessId | None:
        """The handle of the living job, if one lives."""
        try:
            handle = ProcessId(**json.loads(self._handle_file.read_text()))
        except FileNotFoundError:
            return None
        return handle if handle.find() else None

    def _alive(self) -> bool:
        return self._child.running() if self._child else self._handle() is not None


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


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
