"""Which process is meant: a pid with its start time, for a pid alone may be used again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

import psutil


@dataclass(frozen=True, slots=True)
class ProcessId:
    """`started` is the start time in seconds since the epoch."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> Self:
        return cls(pid, psutil.Process(pid).create_time())

    @classmethod
    def mine(cls) -> Self:
        return cls.of(os.getpid())

    @classmethod
    def parse(cls, text: str) -> Self:
        pid, _, started = text.partition("@")
        return cls(int(pid), float(started))

    def __str__(self) -> str:
        return f"{self.pid}@{self.started:.2f}"

    def find(self) -> psutil.Process | None:
        """The process while it lives. A zombie is dead."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 0.02  # the kernel counts in hundredths
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None
