"""A pool of processes that compare answers and can be killed: one thread talks to each at a time.

`instructions.py` holds a killable worker too. Both read a line by a deadline, and no more: workers here are forked
by a warm process, have budgets of processor time and are reaped by it. One module for both would be the longer.
"""

from __future__ import annotations

import contextlib
import enum
import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rufus_core.errors import InfrastructureError

_MODULE = "rufus_core.rewards.math_worker"
_IMPORT_ROOT = Path(__file__).parents[2]
_START_SECONDS = 120.0
_ATTEMPTS = 2
_BUSY_SHARE = 0.5  # of the budget: a worker that got less by its deadline was kept waiting by the machine


class Outcome(enum.Enum):
    """How a comparison ended."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNREADABLE = "unreadable"  # the gold answer
    GOLD_TOO_SLOW = "gold too slow"  # reading it took the budget
    TOO_SLOW = "too slow"  # comparing took the budget
    DIED = "died"  # comparing ended the worker
    KEPT_WAITING = "kept waiting"  # the deadline passed before the budget was spent: the machine's fault


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one comparison; `deadline_seconds` is wall-clock time from when a worker begins it."""

    deadline_seconds: float = 5.0
    cpu_seconds: float = 0.75
    memory_bytes: int = 1 << 30


class _Gone(Exception):
    """The other process has ended."""


class _Zygote:
    """The process that forks workers, and the socket to it."""

    def __init__(self, limits: Limits) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        start = f"import sys; sys.path.insert(0, {str(_IMPORT_ROOT)!r}); from {_MODULE} import main; main()"
        arguments = (str(theirs.fileno()), str(limits.cpu_seconds), str(limits.memory_bytes))
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - a fixed command; texts travel through sockets
                [sys.executable, "-P", "-c", start, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        self._control.settimeout(_START_SECONDS)
        try:
            self._receive()
        except _Gone as error:
            self.kill()
            raise InfrastructureError("the process that compares mathematical answers did not start") from error

    def fork(self, theirs: socket.socket) -> int:
        """The process id of a new worker at the other end of a socket. Raises _Gone."""
        with self._lock:
            try:
                socket.send_fds(self._control, [b"start"], [theirs.fileno()])
            except OSError as error:
                raise _Gone from error
            return int(self._receive())

    def reap(self, worker: int) -> tuple[int, float]:
        """End a worker: the signal that ended it (0 for none), and its processor seconds. Raises _Gone."""
        with self._lock:
            try:
                self._control.send(str(worker).encode())
            except OSError as error:
                raise _Gone from error
            number, seconds = self._receive().split()
            return int(number), float(seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._control.close()

    def _receive(self) -> bytes:
        try:
            message = self._control.recv(64)
        except OSError as error:
            raise _Gone from error
        if not message:
            raise _Gone
        return message


class _Worker:
    def __init__(self, zygote: _Zygote) -> None:
        self._zygote = zygote
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = zygote.fork(theirs)
            except _Gone:
                self._socket.close()
                raise
        self._buffer = b""
        self._cpu_seconds = 0.0
        self.num_comparisons = 0

    def compare(self, gold: str, text: str, limits: Limits) -> Outcome:
        """Raises _Gone if the worker must be replaced and nothing can be said."""
        self.num_comparisons += 1
        began = time.monotonic()
        reading_gold = True
        try:
            self._socket.settimeout(limits.deadline_seconds)
            self._socket.sendall(json.dumps([gold, text]).encode() + b"\n")
            line = self._line(began + limits.deadline_seconds)
            if line == "read":
                reading_gold = False
                line = self._line(began + limits.deadline_seconds)
        except TimeoutError:
            return self._late(reading_gold, limits)
        except (OSError, _Gone):
            if self._zygote.reap(self._process)[0] == signal.SIGPROF:
                return _too_slow(reading_gold)
            raise _Gone from None
        outcome, cpu_seconds = line.split()
        self._cpu_seconds = float(cpu_seconds)
        return Outcome(outcome)

    def _late(self, reading_gold: bool, limits: Limits) -> Outcome:
        number, cpu_seconds = self._zygote.reap(self._process)
        budget = min(limits.cpu_seconds, limits.deadline_seconds)
        if number == signal.SIGPROF or cpu_seconds - self._cpu_seconds >= _BUSY_SHARE * budget:
            return _too_slow(reading_gold)
        return Outcome.KEPT_WAITING

    def _line(self, deadline: float) -> str:
        while b"\n" not in self._buffer:
            self._socket.settimeout(max(1e-6, deadline - time.monotonic()))
            chunk = self._socket.recv(4096)
            if not chunk:
                raise _Gone
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def end(self) -> None:
        self._socket.close()
        with contextlib.suppress(_Gone):  # then the zygote's end was the worker's, too
            self._zygote.reap(self._process)

    def close(self) -> None:
        self._socket.close()


def _too_slow(reading_gold: bool) -> Outcome:
    return Outcome.GOLD_TOO_SLOW if reading_gold else Outcome.TOO_SLOW


class ComparisonPool:
    """Compares with at most `num_workers` processes at once, which start when first needed. Safe among threads.

    A worker that hangs, dies or has done `recycle_after` comparisons is replaced: what sympy remembers stays bounded.
    """

    def __init__(self, num_workers: int, limits: Limits, recycle_after: int = 2000) -> None:
        self.limits = limits
        self._num_workers, self._recycle_after = num_workers, recycle_after
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(num_workers):
            self._idle.put(None)
        self._lock = threading.Lock()
        self._zygote: _Zygote | None = None
        self.longest_seconds = 0.0  # of a comparison, from when its worker began it to when its end was known

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def compare(self, gold: str, text: str) -> Outcome:
        """Wait for a worker and compare. Raises InfrastructureError if none can be had."""
        slot, worker = self._idle.get(), None
        try:
            for _ in range(_ATTEMPTS):
                worker, slot = slot or self._start(), None
                began = time.monotonic()
                try:
                    outcome = worker.compare(gold, text, self.limits)
                except _Gone:
                    worker.close()
                    continue
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
                if outcome in (Outcome.GOLD_TOO_SLOW, Outcome.TOO_SLOW, Outcome.KEPT_WAITING):
                    worker.close()
                elif worker.num_comparisons >= self._recycle_after:
                    worker.end()
                else:
                    slot = worker
                return outcome
            return Outcome.DIED
        finally:
            self._idle.put(slot)  # empty unless a worker is known to wait for its next request

    def close(self) -> None:
        """End all processes once the comparisons that run are done. The pool may be used again."""
        workers = [self._idle.get() for _ in range(self._num_workers)]
        for worker in workers:
            if worker:
                worker.close()
        with self._lock:
            if self._zygote:
                self._zygote.kill()  # the kernel ends the workers with it
            self._zygote = None
        for _ in workers:
            self._idle.put(None)

    def _start(self) -> _Worker:
        for _ in range(_ATTEMPTS):
            with self._lock:
                zygote = self._zygote = self._zygote or _Zygote(self.limits)
            try:
                return _Worker(zygote)
            except _Gone:
                self._replace(zygote)
        raise InfrastructureError("no process can be started that compares mathematical answers")

    def _replace(self, zygote: _Zygote) -> None:
        with self._lock:
            if self._zygote is zygote:
                zygote.kill()
                self._zygote = None
