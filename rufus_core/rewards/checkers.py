"""Puzzles that bring their own checker: a Python function, run in a sandbox on the answer (RRL-R1).

A record has `checker`, the source of `check(answer: str) -> bool`, and the answers `positive` that it must accept and
`negative` that it must refuse. Source and answer are both untrusted: the function runs isolated, the answer is nothing
but its argument, and the value that comes back is compared outside.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Mapping
from typing import Self

from rufus_core.errors import InfrastructureError, SandboxUnavailable
from rufus_core.ports import CodeSandbox
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.types import Json, Verdict

MAX_CHARACTERS = 20_000
SECONDS = 5.0
# What makes no difference from one run to the next, and can't reach beyond the arguments.
MODULES = {
    *("__future__", "ast", "bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq"),
    *("itertools", "json", "math", "operator", "re", "statistics", "string", "textwrap", "typing", "unicodedata"),
}
_FORBIDDEN = {
    *("eval", "exec", "compile", "open", "input", "print", "globals", "locals", "vars", "getattr", "setattr"),
    *("delattr", "breakpoint", "id", "hash", "memoryview"),
}


def checker_fault(record: Mapping[str, Json], pool: CodeSandbox) -> str:
    """Why a record's checker may not grade anybody; empty if it may.

    Raises:
        InfrastructureError: no sandbox can be had.
    """
    source, positive, negative = record.get("checker"), record.get("positive"), record.get("negative")
    if not isinstance(source, str) or not _texts(positive) or not _texts(negative):
        return "it needs a `checker` and texts as `positive` and `negative` examples"
    assert isinstance(positive, list)
    assert isinstance(negative, list)
    if fault := _source_fault(source):
        return fault
    for _ in range(2):  # it may not change its mind
        for text in (*positive, *negative):
            accepted = verify_checked(record, text, pool).passed
            if accepted is not (text in positive):
                return f"it {'accepts a negative' if accepted else 'refuses a positive'} example"
    return ""


def verify_checked(record: Mapping[str, Json], answer: str, pool: CodeSandbox) -> Verdict:
    """Passed iff the checker returns True. One that fails on its first positive example is unscorable."""
    if len(answer) > MAX_CHARACTERS:
        return Verdict.binary(False, f"more than {MAX_CHARACTERS} characters", answer)
    source, positive = record.get("checker"), record.get("positive")
    if not isinstance(source, str) or not _texts(positive):
        return Verdict.unscorable("the record needs a `checker` and `positive` examples")
    assert isinstance(positive, list)
    if fault := _source_fault(source):
        return Verdict.unscorable(f"the checker is refused: {fault}")
    try:
        result = pool.run_checks(source, [_call(positive[0]), _call(answer)], SECONDS)
    except InfrastructureError as error:
        return Verdict.aborted(str(error))
    if result.num_passed == 0:
        return Verdict.unscorable(f"the checker fails on its own example: {result.reason}")
    return Verdict.binary(result.passed, result.reason, answer)


class Checkers:
    """Grades such records; the sandboxes start with the first one. Safe to share among threads.

    Use as a context manager: leaving it ends the sandboxes.
    """

    def __init__(self, open_pool: Callable[[], CodeSandbox] = InterpreterPool) -> None:
        self._open_pool = open_pool
        self._lock = threading.Lock()
        self._pool: CodeSandbox | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            if self._pool:
                self._pool.close()
            self._pool = None

    def verify(self, record: Mapping[str, Json], answer: str) -> Verdict:
        """Where nothing can be isolated, the verdict is aborted."""
        try:
            with self._lock:
                pool = self._pool = self._pool or self._open_pool()
        except SandboxUnavailable as error:
            return Verdict.aborted(str(error))
        return verify_checked(record, answer, pool)


def _call(answer: str) -> str:
    return f"assert check({answer!r}) == True"


def _texts(examples: object) -> bool:
    return isinstance(examples, list) and bool(examples) and all(isinstance(text, str) for text in examples)


def _source_fault(source: str) -> str:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "it is no Python"
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
        return "it has no function `check`"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            if unknown := [name for name in modules if name.partition(".")[0] not in MODULES]:
                return f"it imports {unknown[0]!r}"
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if (isinstance(node, ast.Name) and name in _FORBIDDEN) or name.startswith("__"):
            return f"it uses {name!r}"
    return ""
