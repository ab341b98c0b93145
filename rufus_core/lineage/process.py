"""Which process is meant: a pid with its start time, for a pid alone may be used again, and the host it is of.

And the end of all processes of a session, for those that may leave none behind.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import psutil

_CLOCK_SECONDS = 1.1  # the boot's time is told in whole seconds, and may be told one later
_GONE_SECONDS = 10.0  # until what was killed is gone, else it is looked for again


@dataclass(frozen=True, slots=True)
class ProcessId:
    """`started` is the start time in seconds since the host's boot: setting the clock doesn't change it."""

    pid: int
    started: float
    host: str = field(default_factory=platform.node)

    @classmethod
    def of(cls, pid: int) -> Self:
        return cls(pid, _started(psutil.Process(pid)))

    @classmethod
    def mine(cls) -> Self:
        return cls.of(os.getpid())

    @classmethod
    def parse(cls, text: str) -> Self:
        host, _, process = text.rpartition("/")
        pid, _, started = process.partition("@")
        return cls(int(pid), float(started), host)

    def __str__(self) -> str:
        return f"{self.host}/{self.pid}@{self.started:.2f}"

    def here(self) -> bool:
        return self.host == platform.node()

    def find(self) -> psutil.Process | None:
        """The process while it lives on this host. A zombie is dead."""
        if not self.here():
            return None
        try:
            process = psutil.Process(self.pid)
            same = abs(_started(process) - self.started) < _CLOCK_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def gone(self) -> bool:
        """Whether it is known to be dead: of a process of another host nobody here knows."""
        return self.here() and self.find() is None


def _started(process: psutil.Process) -> float:
    return float(process.create_time() - psutil.boot_time())


def kill_session() -> None:
    """Kill every process of this one's session, also what is started meanwhile."""
    while others := [process for process in psutil.process_iter() if _lives_beside_us(process)]:
        for process in others:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(others, timeout=_GONE_SECONDS)


def _lives_beside_us(process: psutil.Process) -> bool:
    try:
        beside = process.pid != os.getpid() and os.getsid(process.pid) == os.getsid(0)
        return beside and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
