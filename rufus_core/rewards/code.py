"""The verifier of Coding RL: run the drawn tests in a sandbox; all must pass (CRL-R1..R4)."""

from __future__ import annotations

import hashlib

from rufus_core.data.code_records import Case, FunctionalTests, ProgramTests, RecordFault, read_tests
from rufus_core.errors import InfrastructureError
from rufus_core.ports.programs import CodeSandbox, ProgramResult
from rufus_core.rewards.extract import Extraction, extract
from rufus_core.rewards.outputs import difference
from rufus_core.rewards.special_judge import Ruling, rule
from rufus_core.rewards.timed import timed
from rufus_core.types import Problem, Verdict

MAX_TESTS = 50
TIMEOUT_SECONDS = 10.0
_QUOTED = 80  # characters of a test or of an error that a reason quotes


class _FaultyReference(Exception):
    """Nothing that a candidate does could pass."""


def draw_tests(statement: str, num_tests: int, limit: int = MAX_TESTS) -> list[int]:
    """The indices, in order, of at most `limit` tests, drawn by SHA-256 of statement and index (CRL-R2).

    They depend on nothing else, so all rollouts of a problem meet the same tests.
    """

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"{index}\n{statement}".encode("utf-8", "surrogatepass")).digest()

    return sorted(sorted(range(num_tests), key=rank)[:limit])


@timed
def tests_pass(
    problem: Problem,
    response_text: str | None,
    pool: CodeSandbox,
    *,
    max_tests: int = MAX_TESTS,  # noqa: PT028 - this is no test
    seconds_per_test: float = TIMEOUT_SECONDS,  # noqa: PT028
) -> Verdict:
    """Score a response by its record's modality (CRL-R3). No block is a failure like any other (CRL-R4).

    A record's own `timeout_seconds` goes before `seconds_per_test`. A reason names a test by its index in the record.

    Raises SandboxUnavailable; a fault of the infrastructure is an aborted verdict, a faulty record an unscorable one.
    """
    try:
        tests = read_tests(problem.ground_truth)
    except RecordFault as fault:
        return Verdict.unscorable(str(fault))
    code = extract(response_text, Extraction.PYTHON_BLOCK)
    if code is None:
        return Verdict.binary(False, "no complete python block")
    statement = problem.prompt[-1].content if problem.prompt else ""
    drawn = draw_tests(statement, len(tests.tests), max_tests)
    timeout = tests.timeout_seconds or seconds_per_test
    try:
        if isinstance(tests, FunctionalTests):
            reason = _failed_statement(tests, code, drawn, pool, timeout)
        else:
            reason = _failed_case(tests, code, drawn, pool, timeout)
    except InfrastructureError as error:
        return Verdict.aborted(str(error))
    except _FaultyReference as error:
        return Verdict.unscorable(str(error))
    return Verdict.binary(not reason, reason, extracted=code)


def _failed_statement(tests: FunctionalTests, code: str, drawn: list[int], pool: CodeSandbox, timeout: float) -> str:
    """Why the first statement that fails does; empty if all pass."""
    statements = [tests.tests[index] for index in drawn]
    try:
        result = pool.run_checks(code, statements, timeout, setup=tests.setup, test_setup=tests.test_setup)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # of a test, not of the candidate
        raise _FaultyReference(f"a test is no Python: {error or 'nested too deeply'}") from error
    if result.passed:
        return ""
    index = drawn[result.num_passed]
    why = result.reason.partition(": ")[2] or result.reason
    return f"test {index}: {why}: {_in_a_line(tests.tests[index])}"


def _failed_case(tests: ProgramTests, code: str, drawn: list[int], pool: CodeSandbox, timeout: float) -> str:
    """Why the first test that fails does; empty if all pass."""
    reason = ""

    def accept(place: int, result: ProgramResult) -> bool:
        nonlocal reason
        case = tests.tests[drawn[place]]
        if why := _failure(result) or _wrong(tests, case, result.stdout, pool, timeout):
            reason = f"test {drawn[place]}: {why}"
        return not reason

    pool.run_cases(code, [tests.tests[index].input for index in drawn], timeout, accept=accept)
    return reason


def _failure(result: ProgramResult) -> str:
    """How a program ended, if not well."""
    last = result.stderr.rstrip().rpartition("\n")[2] if result.status == "error" else ""
    return "" if result.status == "ok" else ": ".join(filter(None, (result.status, _in_a_line(last))))


def _wrong(tests: ProgramTests, case: Case, actual: str, pool: CodeSandbox, timeout: float) -> str:
    """What is wrong with an output; empty where it is right."""
    if tests.special_judge is None:
        why = difference(actual, case.output, tests.float_tolerance)
        return f"wrong output: {why}" if why else ""
    ruling = rule(tests.special_judge, case, actual, pool, timeout)
    if ruling is Ruling.FAILED and rule(tests.special_judge, case, case.output, pool, timeout) is not Ruling.ACCEPTED:
        raise _FaultyReference("the special judge doesn't accept a reference output")
    return "" if ruling is Ruling.ACCEPTED else f"wrong output: the special judge {ruling}"


def _in_a_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _QUOTED else f"{line[:_QUOTED]}..."
