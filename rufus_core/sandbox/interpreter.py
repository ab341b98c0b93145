"""Short untrusted Python programs: a pool of warm sandboxes, each of which forks a child per program."""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from rufus_core.errors import InfrastructureError
from rufus_core.sandbox.checks import Check, parse_check
from rufus_core.sandbox.isolation import compile_runner, require
from rufus_core.sandbox.process import Sandbox

Status = Literal["ok", "error", "timeout", "memory", "output_limit", "process_limit"]
_LIMITS: dict[str, Status] = {
    "timeout": "timeout",
    "memory": "memory",
    "output_limit": "output_limit",
    "process_limit": "process_limit",
}
_GRACE_SECONDS = 10.0  # beyond the program's own deadline, which the supervisor keeps
_ATTEMPTS = 2  # a program is pure, so it may run again when its sandbox died


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What a program did. `ok` is an exit code of 0; output is at most the limit and decoded with replacement."""

    status: Status
    stdout: str
    stderr: str
    exit_code: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ChecksResult:
    """How many checks passed, in order, until the first failure. `reason` is empty iff all did."""

    num_passed: int
    num_checks: int
    reason: str = ""

    @property
    def passed(self) -> bool:
        return not self.reason and self.num_passed == self.num_checks


class InterpreterPool:
    """Runs Python programs in `workers` isolated interpreters. Safe to use from several threads at once.

    Each sandbox belongs to one thread of the pool: it starts with that thread's first program, and a dead or silent one
    is replaced. Raises SandboxUnavailable where nothing can be isolated, unless `allow_unisolated`.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        memory_bytes: int = 1 << 30,
        output_bytes: int = 1 << 20,
        max_processes: int = 64,
        allow_unisolated: bool = False,
    ) -> None:
        self.isolation = require(allow_unisolated)
        self._memory_bytes, self._output_bytes, self._max_processes = memory_bytes, output_bytes, max_processes
        self._folder = tempfile.TemporaryDirectory(prefix="rufus-runner-")
        self._runner = compile_runner(Path(self._folder.name))
        self._local = threading.local()
        self._sandboxes: set[Sandbox] = set()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="interpreter")

    def run(self, program: str, stdin: str = "", timeout_seconds: float = 10.0) -> ProgramResult:
        """Run a program as `__main__` to its end. Raises InfrastructureError only if no sandbox can be had."""
        request = [b"program", *self._settings(program, timeout_seconds), _encode(stdin)]
        started = time.perf_counter()
        answer = self._submit(request, timeout_seconds)
        seconds = time.perf_counter() - started
        return _result(answer, seconds) if answer else ProgramResult("error", "", "the sandbox died", -9, seconds)

    def run_checks(self, program: str, checks: Sequence[str], timeout_seconds: float = 10.0) -> ChecksResult:
        """Run a program, then each test statement against its names, until the first one that fails.

        The program has `timeout_seconds`, and so has each check. Raises SyntaxError or ValueError for a check that is
        no Python, InfrastructureError if no sandbox can be had.
        """
        parsed = [parse_check(check) for check in checks]
        nonce = secrets.token_hex(16)
        sources = [(b"v" if check.is_value else b"p") + check.source.encode() for check in parsed]
        request = [b"checks", *self._settings(program, timeout_seconds), nonce.encode(), *sources]
        answer = self._submit(request, timeout_seconds * (len(parsed) + 1))
        if not answer:
            return ChecksResult(0, len(parsed), "the sandbox died")
        return _judge(parsed, answer, nonce)

    def close(self) -> None:
        """End all sandboxes. Calling it again does no harm."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        while self._sandboxes:
            self._sandboxes.pop().close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _settings(self, program: str, timeout_seconds: float) -> list[bytes]:
        limits = (timeout_seconds, self._output_bytes, self._memory_bytes)
        return [*(str(value).encode() for value in limits), _encode(program)]

    def _submit(self, request: list[bytes], timeout_seconds: float) -> list[bytes] | None:
        """The answer; None when the program killed every sandbox it ran in."""

        def exchange() -> list[bytes] | None:
            for _ in range(_ATTEMPTS):
                sandbox = self._sandbox()
                try:
                    return sandbox.request(request, timeout_seconds + _GRACE_SECONDS)
                except InfrastructureError:
                    self._drop(sandbox)
            return None

        return self._threads.submit(exchange).result()

    def _sandbox(self) -> Sandbox:
        sandbox: Sandbox | None = getattr(self._local, "sandbox", None)
        if sandbox is not None and sandbox.alive():
            return sandbox
        if sandbox is not None:
            self._drop(sandbox)
        sandbox = self._boot()
        self._sandboxes.add(sandbox)
        self._local.sandbox = sandbox
        return sandbox

    def _boot(self) -> Sandbox:
        memory = 2 * self._memory_bytes
        return Sandbox(self.isolation, self._runner, ("/tmp",), self._max_processes, memory)  # noqa: S108

    def _drop(self, sandbox: Sandbox) -> None:
        sandbox.close()
        self._sandboxes.discard(sandbox)
        self._local.sandbox = None


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _result(answer: list[bytes], seconds: float) -> ProgramResult:
    status, exit_code = answer[0].decode(), int(answer[1])
    return ProgramResult(
        status=_LIMITS.get(status, "ok" if exit_code == 0 else "error"),
        stdout=answer[2].decode(errors="replace"),
        stderr=answer[3].decode(errors="replace"),
        exit_code=exit_code,
        seconds=seconds,
    )


def _judge(checks: list[Check], answer: list[bytes], nonce: str) -> ChecksResult:
    lines = answer[4].decode("ascii", "replace").split("\n")[:-1]
    for index, check in enumerate(checks):
        if index >= len(lines):
            status = answer[0].decode()
            why = "the program ended before its checks did" if status == "exited" else status
            return ChecksResult(index, len(checks), f"check {index}: {why}")
        if not check.passes(lines[index], nonce):
            what = lines[index][2:82] if lines[index].startswith("e ") else "wrong value"
            return ChecksResult(index, len(checks), f"check {index}: {what}")
    return ChecksResult(len(checks), len(checks))
