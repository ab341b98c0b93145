"""Short untrusted Python programs: a pool of warm sandboxes, each of which forks a child per program.

How a sandbox comes to be is the pool's to choose: `InterpreterPool` has them on this machine.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, Self

from rufus_core.errors import InfrastructureError
from rufus_core.ports.programs import ChecksResult, Isolation, ProgramResult, ProgramStatus, Proof
from rufus_core.sandbox.checks import Check, parse_check, parse_setup
from rufus_core.sandbox.isolation import compile_runner, require
from rufus_core.sandbox.process import Sandbox
from rufus_core.sandbox.values import encode

_LIMITS: dict[str, ProgramStatus] = {
    "timeout": "timeout",
    "memory": "memory",
    "output_limit": "output_limit",
    "process_limit": "process_limit",
}
_PROOFS: tuple[Proof, ...] = ("compared", "referee", "helpers")  # from the strongest to the weakest
_GRACE_SECONDS = 10.0  # beyond the program's own deadline, which the supervisor keeps
REQUEST_BYTES = 16 << 20  # of inputs: what is more goes into another request
MEMORY_FACTOR = 2  # a sandbox has this many times the memory of one process


class Supervised(Protocol):
    """A sandbox with a supervisor inside (`runner.py`), used from one thread at a time."""

    def request(self, fields: Sequence[bytes], timeout_seconds: float) -> list[bytes]:
        """Send one message and wait for its answer. A sandbox that gave none is closed: InfrastructureError."""
        ...

    def alive(self) -> bool: ...

    def close(self) -> None:
        """End the sandbox and everything in it. Calling it again does no harm."""
        ...


class ProgramPool:
    """Runs Python programs in `workers` sandboxes. Safe to use from several threads at once.

    Each sandbox belongs to one thread of the pool: it starts with that thread's first program, and a dead or silent one
    is replaced.

    Args:
        boot: starts a sandbox; raises InfrastructureError if none can be had.
        attempts: how often a request is sent, each time to another sandbox. A program is pure, so it may run again.
        blame_program: what it means that every sandbox died. True: the program ended them, for nothing else could
            have. False: an InfrastructureError, for what lies between may have failed.
    """

    def __init__(
        self,
        boot: Callable[[], Supervised],
        workers: int,
        *,
        memory_bytes: int,
        output_bytes: int,
        attempts: int,
        blame_program: bool,
    ) -> None:
        self._boot, self._attempts, self._blame_program = boot, attempts, blame_program
        self._memory_bytes, self._output_bytes = memory_bytes, output_bytes
        self._local = threading.local()
        self._sandboxes: set[Supervised] = set()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="interpreter")

    def run(self, program: str, stdin: str = "", timeout_seconds: float = 10.0) -> ProgramResult:
        """Run a program as `__main__` to its end. Raises InfrastructureError only if no sandbox can be had."""
        (result,) = self.run_cases(program, [stdin], timeout_seconds)
        return result

    def run_cases(
        self,
        program: str,
        inputs: Sequence[str],
        timeout_seconds: float = 10.0,
        *,
        isolation: Isolation = "test",
        accept: Callable[[int, ProgramResult], bool] | None = None,
    ) -> list[ProgramResult]:
        """Run a program on each input; see CodeSandbox.

        With `accept`, requests double in size, so that a wrong program costs at most twice the inputs it got right.
        """
        results: list[ProgramResult] = []
        size = len(inputs) if accept is None else 1
        head = [b"program", *self._limits(timeout_seconds), isolation.encode(), _encode(program)]
        while len(results) < len(inputs):
            stdins = _within(REQUEST_BYTES, inputs[len(results) : len(results) + size])
            started = time.perf_counter()
            answer = self._submit([*head, *stdins], timeout_seconds * len(stdins))
            if answer is None:
                told = [ProgramResult("error", "", "the sandbox died", -9, time.perf_counter() - started)]
            else:
                told = [_result(answer[place : place + 5]) for place in range(0, len(answer), 5)]
            for result in told:
                results.append(result)
                if accept is not None and not accept(len(results) - 1, result):
                    return results
            size *= 2
        return results

    def run_checks(
        self,
        program: str,
        checks: Sequence[str],
        timeout_seconds: float = 10.0,
        *,
        setup: str = "",
        test_setup: str = "",
        isolation: Isolation = "program",
    ) -> ChecksResult:
        """Run a program, then each test statement against its names, until the first one that fails.

        See CodeSandbox. With isolation per test, the program runs again for each, and requests double in size.
        """
        given = parse_setup(f"{setup}\n{test_setup}")
        parsed = [parse_check(check, given) for check in checks]
        proof = max((check.proof for check in parsed), key=_PROOFS.index, default=_PROOFS[0])
        head = [b"checks", *self._limits(timeout_seconds), isolation.encode()]
        code, setups = _encode(program), encode((setup, test_setup))
        num_passed = 0
        size = 1 if isolation == "test" else len(parsed)
        while num_passed < len(parsed):
            asked = parsed[num_passed : num_passed + size]
            tests = encode((given.imports, [(check.kind, check.source, check.classes, check.names) for check in asked]))
            request = [*head, str(len(asked)).encode(), code, setups, tests]
            answer = self._submit(request, timeout_seconds * (len(asked) + 1))
            passed, why = _judge(asked, answer)
            num_passed += passed
            if why:
                return ChecksResult(num_passed, len(parsed), f"check {num_passed}: {why}", proof)
            size *= 2
        return ChecksResult(num_passed, len(parsed), "", proof)

    def close(self) -> None:
        """End all sandboxes. Calling it again does no harm."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        while self._sandboxes:
            self._sandboxes.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _limits(self, timeout_seconds: float) -> list[bytes]:
        return [str(value).encode() for value in (timeout_seconds, self._output_bytes, self._memory_bytes)]

    def _submit(self, request: list[bytes], timeout_seconds: float) -> list[bytes] | None:
        """The answer; None when the program killed every sandbox it ran in."""

        def exchange() -> list[bytes] | None:
            for attempt in range(1, self._attempts + 1):
                sandbox = self._sandbox()
                try:
                    return sandbox.request(request, timeout_seconds + _GRACE_SECONDS)
                except InfrastructureError:
                    self._drop(sandbox)
                    if attempt == self._attempts and not self._blame_program:
                        raise
            return None

        return self._threads.submit(exchange).result()

    def _sandbox(self) -> Supervised:
        sandbox: Supervised | None = getattr(self._local, "sandbox", None)
        if sandbox is not None and sandbox.alive():
            return sandbox
        if sandbox is not None:
            self._drop(sandbox)
        sandbox = self._boot()
        self._sandboxes.add(sandbox)
        self._local.sandbox = sandbox
        return sandbox

    def _drop(self, sandbox: Supervised) -> None:
        sandbox.close()
        self._sandboxes.discard(sandbox)
        self._local.sandbox = None


class InterpreterPool(ProgramPool):
    """A pool of sandboxes on this machine. Raises SandboxUnavailable where nothing can be isolated, unless
    `allow_unisolated`.
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
        self._folder = tempfile.TemporaryDirectory(prefix="rufus-runner-")
        runner = compile_runner(Path(self._folder.name))
        super().__init__(
            lambda: Sandbox(self.isolation, runner, ("/tmp",), max_processes, MEMORY_FACTOR * memory_bytes),  # noqa: S108
            workers,
            memory_bytes=memory_bytes,
            output_bytes=output_bytes,
            attempts=2,
            blame_program=True,
        )

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


def _within(most: int, inputs: Sequence[str]) -> list[bytes]:
    """The first inputs that a request holds, one at least."""
    taken: list[bytes] = []
    for text in inputs:
        data = _encode(text)
        most -= len(data)
        if taken and most < 0:
            break
        taken.append(data)
    return taken


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _result(answer: list[bytes]) -> ProgramResult:
    status, exit_code = answer[0].decode(), int(answer[1])
    return ProgramResult(
        status=_LIMITS.get(status, "ok" if exit_code == 0 else "error"),
        stdout=answer[2].decode(errors="replace"),
        stderr=answer[3].decode(errors="replace"),
        exit_code=exit_code,
        seconds=float(answer[4]),
    )


def _judge(checks: Sequence[Check], answer: list[bytes] | None) -> tuple[int, str]:
    """How many checks passed, and why the next one did not."""
    if answer is None:
        return 0, "the sandbox died"
    lines = b"".join(answer[1:]).decode("ascii", "replace").split("\n")[:-1]
    for index, check in enumerate(checks):
        if index >= len(lines):
            status = answer[0].decode()
            return index, "the program ended before its checks did" if status == "exited" else status
        if not check.passes(lines[index]):
            return index, lines[index][2:82] if lines[index].startswith("e ") else "wrong value"
    return len(checks), ""
