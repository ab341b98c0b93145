"""CRL-R1..R4: the last fenced block, at most 50 seeded tests, all must pass."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.errors import InfrastructureError
from rufus_core.rewards import code as rewards
from rufus_core.rewards.code import same_output, select_tests
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.types import Message, Problem, VerdictKind
from tests.sandbox.real import require_isolation

ADD = "```python\ndef f(x):\n    return x + 3\n```"
ECHO = "```python\nprint(input())\n```"


@pytest.fixture(scope="module")
def pool():
    require_isolation()
    with InterpreterPool(1) as pool:
        yield pool


def functional(*tests, **extra):
    return _problem(modality="functional", tests=list(tests), **extra)


def on_stdin(*pairs, **extra):
    return _problem(modality="stdin_stdout", tests=[{"input": i, "output": o} for i, o in pairs], **extra)


def _problem(**truth):
    return Problem.build("code", "test", [Message(role="user", content="Do it.")], truth)


@given(st.text(), st.lists(st.integers(), max_size=80, unique=True), st.integers(1, 60))
def test_the_draw_of_tests_CRL_R2(statement, tests, limit):
    chosen = select_tests(statement, tests, limit)
    assert len(chosen) == min(limit, len(tests))
    assert chosen == [test for test in tests if test in chosen]  # in their order, none twice
    assert chosen == select_tests(statement, tests, limit)


def test_the_draw_is_seeded_by_sha256_of_the_statement_CRL_R2():
    by_rank = sorted(range(60), key=lambda index: hashlib.sha256(f"{index}\nAdd.".encode()).digest())
    assert select_tests("Add.", range(60)) == sorted(by_rank[:50])
    assert select_tests("Add.", range(60)) != select_tests("Subtract.", range(60))


@pytest.mark.parametrize(
    ("actual", "expected", "tolerance", "same"),
    [
        ("1 2\n", "1  2", None, True),
        ("1 2 \n\n", "1 2", None, True),
        ("1\n2", "1 2", None, False),
        ("1", "1.0", None, False),
        ("1.0000001", "1", 1e-6, True),
        ("1.1", "1", 1e-6, False),
        ("nan", "nan", None, True),
        ("nan", "1", 1e9, False),
        ("inf", "1", 1e9, False),
        ("x", "1", 1e-6, False),
        ("", "", None, True),
        ("1 2", "1", None, False),
        ("YES", "yes", None, False),
    ],
)
def test_outputs_are_compared_by_tokens(actual, expected, tolerance, same):
    assert same_output(actual, expected, tolerance) is same


def test_all_tests_must_pass_CRL_R3(pool):
    good = rewards.tests_pass(functional("assert f(1) == 4", "assert f(2) == 5"), f"So:\n{ADD}\nDone.", pool)
    assert (good.score, good.passed, good.extracted) == (1.0, True, "def f(x):\n    return x + 3")
    bad = rewards.tests_pass(functional("assert f(1) == 4", "assert f(2) == 6"), ADD, pool)
    assert (bad.score, bad.kind) == (0.0, VerdictKind.FAIL)
    assert "check 1" in bad.reason


def test_dispatch_on_modality_CRL_R3(pool):
    assert rewards.tests_pass(on_stdin(("a\n", "a\n"), ("b\n", "b")), ECHO, pool).passed
    assert "test 1: wrong output" in rewards.tests_pass(on_stdin(("a\n", "a"), ("b\n", "c")), ECHO, pool).reason
    assert "test 0: error" in rewards.tests_pass(on_stdin(("", "a")), ECHO, pool).reason
    slow = "```python\nwhile True: pass\n```"
    assert "timeout" in rewards.tests_pass(on_stdin(("", "a"), timeout_seconds=0.2), slow, pool).reason


def test_the_right_output_with_a_failing_exit_is_no_pass(pool):
    assert not rewards.tests_pass(on_stdin(("a\n", "a")), "```python\nprint(input())\n1 / 0\n```", pool).passed


def test_float_tolerance_only_if_the_record_asks(pool):
    third = "```python\nprint(1 / 3)\n```"
    assert not rewards.tests_pass(on_stdin(("", "0.33333")), third, pool).passed
    assert rewards.tests_pass(on_stdin(("", "0.33333"), float_tolerance=1e-4), third, pool).passed


def test_no_block_fails_like_any_other_answer_CRL_R4(pool):
    verdict = rewards.tests_pass(functional("assert f(1) == 4"), "def f(x): return x + 3", pool)
    assert (verdict.score, verdict.kind) == (0.0, VerdictKind.FAIL)
    assert "no complete python block" in verdict.reason


@pytest.mark.parametrize(
    "truth",
    [
        {"modality": "functional", "tests": []},
        {"modality": "functional", "tests": [" "]},
        {"modality": "functional"},
        {"modality": "functional", "tests": ["assert f( == 1"]},
        {"modality": "stdin_stdout", "tests": [{"input": "1"}]},
        {"modality": "stdin_stdout", "tests": [{"input": "1", "output": " "}]},
        {"modality": "other", "tests": ["assert f(1)"]},
        {},
    ],
)
def test_a_faulty_record_is_unscorable_CRL_D3(pool, truth):
    assert rewards.tests_pass(_problem(**truth), ADD, pool).kind is VerdictKind.UNSCORABLE


def test_a_fault_of_the_infrastructure_is_aborted(pool):
    class Broken:
        def run_checks(self, *args):
            raise InfrastructureError("the sandbox did not boot")

    verdict = rewards.tests_pass(functional("assert f(1) == 4"), ADD, Broken())
    assert verdict.kind is VerdictKind.ABORTED
