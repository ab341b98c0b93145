"""The job of a step, whatever starts it: the protocol of the launchers, and what they share.

A job lives in a folder of the home: its document, its progress, its log, and what it says of a failure. Every launcher
finds its job again by that folder alone, so that whoever comes back joins it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

DOCUMENT, LOG, PROGRESS = "document.json", "job.log", "progress.jsonl"  # in a job's folder
GRACE_SECONDS = 30.0  # a job may have a training step to end and its state to save

Progress = Callable[[Mapping[str, Any]], None]


class JobCancelled(Exception):
    """The job was ended because its run was told to stop; its attempt stays unpublished."""


@dataclass(frozen=True, slots=True)
class JobResources:
    """What a job takes: `cpus` of its process, GPUs of all its nodes, and how many ranks it is shared by."""

    cpus: int = 1
    nodes: int = 1
    gpus_per_node: int = 0
    num_ranks: int = 1


class LaunchedJob(Protocol):
    """One job. `start` may be called again at any time: a living job is joined."""

    folder: Path
    log: Path

    def start(self, prepare: Callable[[], None]) -> bool:
        """Start it, or join the living one. True when it was joined.

        `prepare` runs only before a start: it writes the document, and may write other files into the job's folder.

        Raises:
            JobLost: whether an earlier one lives can't be asked now.
            InfrastructureError: it can't be started.
        """
        ...

    def wait(
        self,
        progress_file: Path,
        on_progress: Progress,
        cancelled: threading.Event,
        at_once: threading.Event | None = None,
    ) -> int | None:
        """Block until the job ended, passing on its progress lines. The exit code, or None where nobody knows it.

        Raises JobCancelled after `cancelled` was set, and JobLost where nobody can say what became of the job. It is
        dead by then, also on Ctrl-C; it gets no time to save its state once `at_once` is set.
        """
        ...

    def cancel(self, at_once: threading.Event) -> None:
        """End it: a word, a grace period that `at_once` ends, force. It is dead on return, or was never there.

        Raises InfrastructureError where nobody confirms that.
        """
        ...

    def lives(self) -> bool:
        """Whether it lives, whoever started it. One that nobody can be asked about is taken to live."""
        ...


class JobLauncher(Protocol):
    """Starts jobs. Safe to use from several threads."""

    def job(self, folder: Path, resources: JobResources) -> LaunchedJob: ...


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


def pass_on(lines: Iterator[str | None], on_progress: Progress) -> None:
    """Tell of every line that `tail` has by now."""
    while (line := next(lines)) is not None:
        with suppress(json.JSONDecodeError):  # a killed attempt leaves half a line, and the next one writes on after it
            on_progress(json.loads(line))
