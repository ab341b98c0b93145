"""CRL-R1..R4: the last fenced block, at most 50 seeded tests, all must pass."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.code_records import OUTPUT_BYTES
from rufus_core.errors import InfrastructureError
from rufus_core.rewards import code as rewards
from rufus_core.rewards.code import draw_tests
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


@given(st.text(), st.integers(1, 80), st.integers(1, 60))
def test_the_draw_of_tests_CRL_R2(statement, num_tests, limit):
    drawn = draw_tests(statement, num_tests, limit)
    assert len(drawn) == len(set(drawn)) == min(limit, num_tests)
    assert drawn == sorted(drawn)
    assert set(drawn) <= set(range(num_tests))
    assert drawn == draw_tests(statement, num_tests, limit)


def test_the_draw_is_seeded_by_sha256_of_the_statement_CRL_R2():
    by_rank = sorted(range(60), key=lambda index: hashlib.sha256(f"{index}\nAdd.".encode()).digest())
    assert draw_tests("Add.", 60) == sorted(by_rank[:50])
    assert draw_tests("Add.", 60) != draw_tests("Subtract.", 60)


def test_fifty_tests_at_most_decide_and_the_same_in_every_rollout_and_process_CRL_R2(pool):
    drawn = draw_tests("Do it.", 60)
    (left_out, *_) = sorted(set(range(60)) - set(drawn))
    assert (len(drawn), len(draw_tests("Do it.", 50)), len(draw_tests("Do it.", 51))) == (50, 50, 50)
    for failing, passes in ((left_out, True), (drawn[0], False), (drawn[-1], False)):
        tests = [f"assert f({x}) == {x + 3 + (x == failing)}" for x in range(60)]
        verdicts = [rewards.tests_pass(functional(*tests), ADD, pool) for _ in range(3)]
        assert [verdict.passed for verdict in verdicts] == [passes] * 3
        assert len({verdict.reason for verdict in verdicts}) == 1
    asked = "from rufus_core.rewards.code import draw_tests; print(draw_tests('Do it.', 60))"
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        told = subprocess.run(
            [sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True
        )
        assert json.loads(told.stdout) == drawn


def test_all_tests_must_pass_CRL_R3(pool):
    good = rewards.tests_pass(functional("assert f(1) == 4", "assert f(2) == 5"), f"So:\n{ADD}\nDone.", pool)
    assert (good.score, good.passed, good.extracted) == (1.0, True, "def f(x):\n    return x + 3")
    bad = rewards.tests_pass(functional("assert f(1) == 4", "assert f(2) == 6"), ADD, pool)
    assert (bad.score, bad.kind) == (0.0, VerdictKind.FAIL)
    assert bad.reason == "test 1: wrong value: assert f(2) == 6"


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
    "text",
    [
        ADD,
        f"{'Well, let me see. ' * 500}\n\n{ADD}\n\nThat should do it!!!",
        f"```python\ndef f(x):\n    return 0\n```\nNo:\n{ADD}",
        "```\nsome notes\n```\n" + ADD,
        ADD.replace("    ", "  "),
    ],
)
def test_how_a_right_answer_is_laid_out_costs_nothing_CRL_R4(pool, text):
    verdict = rewards.tests_pass(functional("assert f(1) == 4"), text, pool)
    assert (verdict.score, verdict.parts) == (1.0, {})


def test_a_wrong_answer_costs_the_same_with_a_block_and_without_CRL_R4(pool):
    problem = functional("assert f(1) == 5")
    assert [rewards.tests_pass(problem, text, pool).score for text in (ADD, "def f(x): return x + 3", "")] == [0, 0, 0]


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
        def run_checks(self, *args, **options):
            raise InfrastructureError("the sandbox did not boot")

    verdict = rewards.tests_pass(functional("assert f(1) == 4"), ADD, Broken())
    assert verdict.kind is VerdictKind.ABORTED


def test_an_output_that_differs_is_told_by_index_and_place(pool):
    verdict = rewards.tests_pass(on_stdin(("a", "a"), ("b c\nd", "b d")), ECHO, pool)
    assert verdict.reason == "test 1: wrong output: line 1: expected 'd', got 'c'"
    assert rewards.tests_pass(on_stdin(("a", "a")), "```python\npass\n```", pool).reason.endswith("no output")


def test_a_reason_names_the_test_by_its_index_in_the_record(pool):
    """Also where only some tests are drawn."""
    tests = [f"assert f({x}) == {x + 3}" for x in range(60)]
    problem = functional(*tests)
    index = rewards.draw_tests("Do it.", 60, 5)[-1]
    problem.ground_truth["tests"][index] = "assert f(0) == 'no'"
    reason = rewards.tests_pass(problem, ADD, pool, max_tests=5).reason
    assert reason == f"test {index}: wrong value: assert f(0) == 'no'"


@pytest.mark.parametrize("code", ["def f(:", "\udc80", "\0", "return", "(" * 500])
def test_code_that_does_not_parse_fails(pool, code):
    for problem in (functional("assert f(1) == 4"), on_stdin(("1", "4"))):
        assert rewards.tests_pass(problem, f"```python\n{code}\n```", pool).kind is VerdictKind.FAIL


def test_the_end_of_an_error_is_told(pool):
    reason = rewards.tests_pass(on_stdin(("a", "a")), "```python\nint(input())\n```", pool).reason
    assert reason == "test 0: error: ValueError: invalid literal for int() with base 10: 'a'"


def test_setup_runs_before_the_code_and_test_setup_behind_it(pool):
    uses_list = "```python\nfrom __future__ import annotations\ndef f(x: List[int]):\n    return sqrt(sum(x))\n```"
    tests = ["assert f([4]) == 2"]
    assert not rewards.tests_pass(functional(*tests), uses_list, pool).passed
    assert rewards.tests_pass(
        functional(*tests, setup="from typing import *\nfrom math import *"), uses_list, pool
    ).passed
    node = "```python\nclass Node:\n    x = 4\ndef f(node):\n    return node.x\n```"
    assert rewards.tests_pass(functional("assert f(root) == 4", test_setup="root = Node()"), node, pool).passed


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
        "import sys\nsys.stdout.buffer.write(b'%d' % sum(map(int, sys.stdin)))",
        "import sys\nsys.stdout.write(str(sum(int(line) for line in sys.stdin.readlines())))",
        "import os\nprint(sum(map(int, os.read(0, 1 << 20).split())))",
        "print(sum(map(int, open(0).read().split())), end='  \\n\\n')",
        "def main():\n    print(int(input()) + int(input()))\nif __name__ == '__main__':\n    main()",
    ],
)
def test_what_contest_programs_do_with_their_streams(pool, program):
    big = "9" * 4301
    problem = on_stdin(("1\n2\n", "3\n"), (f"{big}\n1\n", "1" + "0" * 4301))
    assert rewards.tests_pass(problem, f"```python\n{program}\n```", pool).reason == ""


def test_records_without_prompt_or_with_half_surrogates_get_a_verdict(pool):
    bare = Problem(
        id="x", family="code", source="test", prompt=(), ground_truth=functional("assert f(1) == 4").ground_truth
    )
    assert rewards.tests_pass(bare, ADD, pool).passed
    odd = bare.model_copy(update={"prompt": (Message(role="user", content="\ud800"),)})
    assert rewards.tests_pass(odd, ADD, pool).passed


def test_outputs_of_megabytes_are_compared():
    """Up to what a record may hold."""
    require_isolation()
    with InterpreterPool(1, output_bytes=OUTPUT_BYTES) as wide:
        long = on_stdin(("", "1 2\n" * 1_000_000))
        assert rewards.tests_pass(long, "```python\nprint('1 2\\n' * 1_000_000)\n```", wide).reason == ""
        wrong = rewards.tests_pass(long, "```python\nprint('1 2\\n' * 999_999)\n```", wide)
        assert wrong.reason == "test 0: wrong output: expected 1000000 lines, got 999999"
