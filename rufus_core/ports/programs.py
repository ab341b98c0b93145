"""Sandboxes of short untrusted Python programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

ProgramStatus = Literal["ok", "error", "timeout", "memory", "output_limit", "process_limit"]
Isolation = Literal["test", "program"]  # a fresh process for each test; one process for all tests of a program
Proof = Literal["compared", "referee", "helpers"]


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What a program did. `ok` is an exit code of 0; output is at most the limit and decoded with replacement.

    `seconds` are its own, without waiting for a sandbox.
    """

    status: ProgramStatus
    stdout: str
    stderr: str
    exit_code: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ChecksResult:
    """How many checks passed, in order, until the first failure. `reason` is empty iff all did.

    `proof` is the weakest that a check rests on. "compared": values were compared outside the sandbox. "referee":
    statements were run inside, by a process that the program can't reach. "helpers": helper code of the record had to
    share the program's process, which could have replaced it.
    """

    num_passed: int
    num_checks: int
    reason: str = ""
    proof: Proof = "compared"

    @property
    def passed(self) -> bool:
        return not self.reason and self.num_passed == self.num_checks


class CodeSandbox(Protocol):
    """Runs untrusted Python programs. Safe to use from several threads at once.

    Each program or test has `timeout_seconds`; nothing of it survives. Every method raises InfrastructureError if no
    sandbox can be had.
    """

    def run(self, program: str, stdin: str = "", timeout_seconds: float = 10.0) -> ProgramResult:
        """Run a program as `__main__` to its end."""
        ...

    def run_cases(
        self,
        program: str,
        inputs: Sequence[str],
        timeout_seconds: float = 10.0,
        *,
        isolation: Isolation = "test",
        accept: Callable[[int, ProgramResult], bool] | None = None,
    ) -> list[ProgramResult]:
        """Run a program on each input, and return the results in order.

        Args:
            accept: says of an input's index and result whether to go on. The first that it refuses is the last
                returned. None: all are run.
        """
        ...

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

        Args:
            setup: runs before the program, in its process (helper classes, imports).
            test_setup: runs after the program, in its process (objects that the tests use).

        Raises:
            SyntaxError, ValueError: a check or a setup is no Python.
        """
        ...

    def close(self) -> None:
        """End all sandboxes. Calling it again does no harm."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...
