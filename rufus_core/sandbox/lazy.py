"""A sandbox for records of which few need one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from rufus_core.ports.programs import CodeSandbox


class LazySandbox:
    """Calling it gives one sandbox to all, which the first call opens. Safe to use from several threads at once.

    Use as a context manager: leaving it ends the sandbox, if there is one.
    """

    def __init__(self, open_sandbox: Callable[[], CodeSandbox]) -> None:
        self._open = open_sandbox
        self._lock = threading.Lock()
        self._sandbox: CodeSandbox | None = None

    def __call__(self) -> CodeSandbox:
        """Raises what opening raises, and tries again when called again."""
        with self._lock:
            if self._sandbox is None:
                self._sandbox = self._open()
            return self._sandbox

    def close(self) -> None:
        """Calling it again does no harm."""
        with self._lock:
            if self._sandbox is not None:
                self._sandbox.close()
            self._sandbox = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
