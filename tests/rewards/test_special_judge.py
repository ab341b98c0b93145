"""A record's own judge decides, in the sandbox; it is refused where it doesn't know its own references."""

import pytest

from rufus_core.data.code_records import read_tests
from rufus_core.rewards import code as rewards
from rufus_core.rewards.special_judge import judge_fault
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.types import Message, Problem, VerdictKind
from tests.sandbox.real import require_isolation

# Any two numbers that sum up to the input are right.
SUMS = """
import sys
given, expected, actual = (open(name).read() for name in sys.argv[1:])
numbers = [int(token) for token in actual.split()]
print(int(len(numbers) == 2 and sum(numbers) == int(given)))
"""


@pytest.fixture(scope="module")
def pool():
    require_isolation()
    with InterpreterPool(1) as pool:
        yield pool


def problem(judge, *pairs, **extra):
    truth = {
        "modality": "stdin_stdout",
        "tests": [{"input": i, "output": o} for i, o in pairs or (("5\n", "2 3\n"), ("9\n", "4 5\n"))],
        "special_judge": judge,
    }
    return Problem.build("code", "test", [Message(role="user", content="Split it.")], truth | extra)


def verdict(pool, judge, program):
    return rewards.tests_pass(problem(judge), f"```python\n{program}\n```", pool)


def test_the_judge_decides_in_place_of_the_comparison(pool):
    assert verdict(pool, SUMS, "print(1, int(input()) - 1)").passed
    wrong = verdict(pool, SUMS, "print(1, 4)")
    assert (wrong.kind, wrong.reason) == (VerdictKind.FAIL, "test 1: wrong output: the special judge rejected")


def test_a_judge_that_fails_on_an_odd_output_does_not_spare_the_answer(pool):
    odd = verdict(pool, SUMS, "print('five')")
    assert (odd.kind, odd.reason) == (VerdictKind.FAIL, "test 0: wrong output: the special judge failed")


@pytest.mark.parametrize("judge", ["1 / 0", "print('maybe')", "def", "import os\nos._exit(3)"])
def test_a_judge_that_fails_on_its_own_references_is_the_records_fault(pool, judge):
    assert verdict(pool, judge, "print(2, 3)").kind is VerdictKind.UNSCORABLE


@pytest.mark.parametrize(
    ("judge", "fault"),
    [
        (SUMS, ""),
        ("print(0)", "test 0: the special judge rejected on the reference output"),
        ("1 / 0", "test 0: the special judge failed on the reference output"),
        ("while True: pass", "test 0: the special judge failed on the reference output"),
        ("print(1)", "the special judge accepts empty outputs"),
    ],
)
def test_a_judge_is_refused_that_does_not_know_its_references(pool, judge, fault):
    assert judge_fault(read_tests(problem(judge, timeout_seconds=0.5).ground_truth), pool) == fault


def test_a_record_without_a_judge_has_no_fault(pool):
    assert judge_fault(read_tests(problem(None).ground_truth), pool) == ""


def test_a_candidate_can_print_no_verdict_of_its_own(pool):
    for forged in ("print(1)", "print('1\\n' * 3)", "open('expected.txt', 'w').write('1'); print(1)"):
        assert verdict(pool, SUMS, forged).kind is VerdictKind.FAIL
