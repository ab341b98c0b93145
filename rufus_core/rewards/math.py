r"""Whether a mathematical answer equals the reference (RRL-R1): Math-Verify in a process that can be killed.

A parser that meets `9^{9^{9^{9}}}` does not come back, and Math-Verify's alarm works only in a main thread. So the
comparison runs in a worker process with a deadline; a worker that hangs or dies is replaced.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Self

from rufus_core.errors import InfrastructureError
from rufus_core.types import Verdict

_WORKER = Path(__file__).with_name("math_worker.py")
_START_SECONDS = 120.0
_WRAPPED = re.compile(r"\s*(?:\\boxed\{(?P<boxed>[^{}]*)\}|\$(?P<inline>[^$]*)\$|(?P<bare>[^$]*))\s*")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_SPACED_DIGITS = re.compile(r"[\d\s]*\d\s+\d[\d\s]*", re.ASCII)


class _Hung(Exception):
    """The worker missed its deadline."""


class _Died(Exception):
    """The worker's output ended."""


class _Worker:
    """One worker process and the pipe to it."""

    def __init__(self) -> None:
        # -P keeps this folder, which has a `math.py`, off the worker's import path
        self._process = subprocess.Popen(  # noqa: S603 - a fixed command; texts travel through the pipe
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._buffer = b""
        try:
            self.read(_START_SECONDS)
        except (_Hung, _Died) as error:
            self.kill()
            raise InfrastructureError("the Math-Verify worker did not start", where=str(_WORKER)) from error

    def write(self, request: dict[str, str]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise _Died from error

    def read(self, seconds: float) -> str:
        """The next line. Raises _Hung after `seconds`, _Died if there will be none."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise _Hung
            chunk = os.read(pipe, 65536)
            if not chunk:
                raise _Died
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class MathVerifier:
    """Compares answers with references. One worker, started when first needed; safe to share among threads.

    Use as a context manager: leaving it ends the worker.

    Args:
        deadline_seconds: for reading the reference, and again for reading and comparing the answer.
    """

    def __init__(self, deadline_seconds: float = 10.0) -> None:
        self._deadline = deadline_seconds
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._discard()

    def verify(self, gold: str, text: str) -> Verdict:
        r"""Whether `text` states a value equal to `gold`. The two are not interchangeable.

        Which part of a response is its answer is not decided here (see `extract`). Two plain numbers, bare or in
        `$...$` or `\boxed{}`, are compared exactly without a worker; everything else is Math-Verify's to judge.
        A reference that can't be read, or not in time, is unscorable; an answer that can't be is wrong.

        Raises:
            InfrastructureError: no worker could be started.
        """
        reference, answer = _unwrap(gold), _unwrap(text)
        if _NUMBER.fullmatch(reference):
            if _NUMBER.fullmatch(answer):
                return Verdict.binary(Decimal(reference) == Decimal(answer), "compared as numbers", answer)
            if _SPACED_DIGITS.fullmatch(answer):  # Math-Verify would read "8 8" as a sum, 16
                return Verdict.binary(False, "digits apart are not a number", answer)
        with self._lock:
            verdict = self._compare(gold, text)
            if verdict is not None:
                return verdict
            # Which of the two hangs? A reference that also hangs against a 1 is itself at fault.
            if _NUMBER.fullmatch(reference) or self._compare(gold, "1") is not None:
                return Verdict.binary(False, "the answer could not be compared in time", text)
            return Verdict.unscorable("the reference could not be compared in time")

    def _compare(self, gold: str, text: str) -> Verdict | None:
        """Math-Verify's verdict; None if it missed the deadline. A worker that dies gets one successor."""
        for _ in range(2):
            self._worker = self._worker or _Worker()
            try:
                self._worker.write({"gold": gold, "text": text})
                if not json.loads(self._worker.read(self._deadline)):
                    return Verdict.unscorable("the reference could not be read")
                return Verdict.binary(json.loads(self._worker.read(self._deadline)), "compared by Math-Verify", text)
            except _Hung:
                self._discard()
                return None
            except _Died:
                self._discard()
        return Verdict.binary(False, "comparing it ended the worker", text)

    def _discard(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _unwrap(text: str) -> str:
    """The text without one enclosing box or pair of dollar signs."""
    match = _WRAPPED.fullmatch(text)
    if match is None:
        return text
    return next(group for group in match.group("boxed", "inline", "bare") if group is not None).strip()
