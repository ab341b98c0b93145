"""Processes that wait for a word before they begin, so that who they are is on disk first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Protocol

from rufus_core.lineage.process import ProcessId

# A launcher that is killed before its word leaves no unknown process behind, because the closed pipe ends it.
# `exec` keeps pid and start time.
_WAIT_THEN_EXEC = "import os, sys; sys.stdin.buffer.read(1) or sys.exit(1); os.execv(sys.argv[1], sys.argv[1:])"


class Child(Protocol):
    """A process in a session of its own, however it was started."""

    id: ProcessId

    def begin(self) -> None:
        """The word it waits for."""

    def running(self) -> bool:
        """Whether it lives. Never blocks."""

    @property
    def code(self) -> int | None:
        """Its exit code (negative: the signal that ended it), once it isn't running; None if nobody knows."""


class ExecutedChild:
    """Runs `command` (its first part is the path of a program) with its output in `log`."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-S", "-c", _WAIT_THEN_EXEC, *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(env),
        )
        self.id = ProcessId.of(self._process.pid)

    def begin(self) -> None:
        assert self._process.stdin is not None
        with self._process.stdin as gate:
            gate.write(b"\n")

    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        return self._process.returncode
