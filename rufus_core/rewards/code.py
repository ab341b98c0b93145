"""The verifier of Coding RL: run the selected tests in a sandbox; all must pass (CRL-R1..R4)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

from rufus_core.data.code_records import schema_fault
from rufus_core.errors import InfrastructureError
from rufus_core.rewards.extract import Extraction, extract
from rufus_core.rewards.timed import timed
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.types import Json, Problem, Verdict

MAX_TESTS = 50
TIMEOUT_SECONDS = 10.0

Test = TypeVar("Test")


def select_tests(statement: str, tests: Sequence[Test], limit: int = MAX_TESTS) -> list[Test]:
    """At most `limit` tests in order, drawn by SHA-256 of statement and index: equal for all rollouts (CRL-R2)."""

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"{index}\n{statement}".encode()).digest()

    chosen = sorted(range(len(tests)), key=rank)[:limit]
    return [tests[index] for index in sorted(chosen)]


def same_output(actual: str, expected: str, float_tolerance: float | None = None) -> bool:
    """Line by line and token by token, after stripping trailing whitespace.

    With a tolerance, tokens that are finite numbers are equal if they differ by it at most, absolutely or relatively.
    """
    actual_lines, expected_lines = (text.rstrip().split("\n") for text in (actual, expected))
    if len(actual_lines) != len(expected_lines):
        return False
    for ours, theirs in zip(actual_lines, expected_lines, strict=True):
        our_tokens, their_tokens = ours.split(), theirs.split()
        if len(our_tokens) != len(their_tokens):
            return False
        if not all(map(lambda a, b: a == b or _close(a, b, float_tolerance), our_tokens, their_tokens)):
            return False
    return True


@timed
def tests_pass(
    problem: Problem,
    response_text: str | None,
    pool: InterpreterPool,
    *,
    max_tests: int = MAX_TESTS,  # noqa: PT028 - this is no test
    seconds_per_test: float = TIMEOUT_SECONDS,  # noqa: PT028
) -> Verdict:
    """Score a response by its record's modality (CRL-R3). No block is a failure like any other (CRL-R4).

    A record's own `timeout_seconds` goes before `seconds_per_test`.

    Raises SandboxUnavailable; a fault of the infrastructure is an aborted verdict, a faulty record an unscorable one.
    """
    truth = problem.ground_truth
    if fault := schema_fault(truth):
        return Verdict.unscorable(fault)
    code = extract(response_text, Extraction.PYTHON_BLOCK)
    if code is None:
        return Verdict.binary(False, "no complete python block")
    tests = select_tests(problem.prompt[-1].content, truth["tests"], max_tests)
    timeout = float(truth.get("timeout_seconds", seconds_per_test))
    try:
        if truth["modality"] == "functional":
            reason = pool.run_checks(code, tests, timeout).reason
        else:
            reason = _failed_output(truth, code, tests, pool, timeout)
    except InfrastructureError as error:
        return Verdict.aborted(str(error))
    except (SyntaxError, ValueError) as error:  # of a test, not of the candidate
        return Verdict.unscorable(f"a test is no Python: {error}")
    return Verdict.binary(not reason, reason, extracted=code)


def _failed_output(truth: dict[str, Json], code: str, tests: list[Json], pool: InterpreterPool, timeout: float) -> str:
    for index, test in enumerate(tests):
        result = pool.run(code, test["input"], timeout)
        if result.status != "ok":
            return f"test {index}: {result.status}"
        if not same_output(result.stdout, test["output"], truth.get("float_tolerance")):
            return f"test {index}: wrong output"
    return ""


def _close(actual: str, expected: str, tolerance: float | None) -> bool:
    if tolerance is None:
        return False
    try:
        ours, theirs = float(actual), float(expected)
    except ValueError:
        return False
    return math.isfinite(ours) and math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=tolerance)
