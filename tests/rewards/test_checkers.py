"""Generated Python checkers run in a sandbox on the answer (RRL-R1)."""

import pytest

from rufus_core.errors import SandboxUnavailable
from rufus_core.rewards.checkers import Checkers, checker_fault, verify_checked
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.reasoning import verify_reasoning
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.sandbox.isolation import probe
from rufus_core.types import Message, Problem, VerdictKind

pytestmark = pytest.mark.skipif(not probe().isolated, reason="nothing can be isolated here")

EVEN = "def check(answer: str) -> bool:\n    return int(answer) % 2 == 0\n"


def record(source=EVEN, positive=("4", "10"), negative=("3", "x")):
    return {"checker": source, "positive": list(positive), "negative": list(negative)}


@pytest.fixture(scope="module")
def pool():
    with InterpreterPool(workers=1) as pool:
        yield pool


@pytest.mark.parametrize(
    ("answer", "passed"), [("8", True), ("7", False), ("eight", False), ("", False), ("8\ud800", False)]
)
def test_the_checker_decides_and_an_answer_that_it_fails_on_is_wrong(pool, answer, passed):
    verdict = verify_checked(record(), answer, pool)
    assert verdict.kind is (VerdictKind.PASS if passed else VerdictKind.FAIL)


def test_a_good_checker_is_accepted(pool):
    assert checker_fault(record(), pool) == ""


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("def check(answer):\n    return True\n", "negative"),
        ("def check(answer):\n    return False\n", "positive"),
        ("def check(answer):\n    return 'yes'\n", "positive"),
        ("def check(answer):\n    return int('nothing')\n", "positive"),
        (
            "seen = []\ndef check(answer):\n    seen.append(answer)\n    return len(seen) == 1 and answer in '4 10'\n",
            "",
        ),
        ("import random\ndef check(answer):\n    return random.random() < 0.5\n", "random"),
        ("import os\ndef check(answer):\n    return True\n", "os"),
        ("def check(answer):\n    return eval(answer)\n", "eval"),
        ("def check(answer):\n    return answer.__class__ is str\n", "__class__"),
        ("def verify(answer):\n    return True\n", "check"),
        ("def check(answer) return", "Python"),
        ("\x00", "Python"),
    ],
)
def test_a_bad_checker_is_refused(pool, source, fault):
    assert fault in checker_fault(record(source), pool)


@pytest.mark.parametrize("missing", ["checker", "positive", "negative"])
def test_a_record_without_examples_is_refused(pool, missing):
    assert missing in checker_fault({**record(), missing: []}, pool)


@pytest.mark.parametrize(
    "source",
    [
        "def check(answer):\n    return 1 / 0\n",
        "def check(answer):\n    while True: pass\n",
        "def check(",
        "import socket\n",
    ],
)
def test_a_broken_checker_is_unscorable(pool, source):
    assert verify_checked(record(source), "4", pool).kind is VerdictKind.UNSCORABLE


def test_an_answer_is_an_argument_and_no_code(pool):
    for answer in ("') or True or check('4", "4') == True #", "__import__('os')._exit(0)", '"""', "\\", "\x00"):
        assert verify_checked(record(), answer, pool).kind is VerdictKind.FAIL


def test_reasoning_grades_puzzles_with_their_own_checker():
    problem = Problem.build("puzzle", "test", [Message(role="user", content="An even number?")], record())
    with MathVerifier() as math, Checkers() as checkers:
        assert verify_reasoning(problem, r"It is \boxed{12}", math, checkers=checkers).passed
        assert not verify_reasoning(problem, r"It is \boxed{13}", math, checkers=checkers).passed
        assert verify_reasoning(problem, r"It is \boxed{12}", math).kind is VerdictKind.ABORTED


def test_without_isolation_the_verdict_is_aborted():
    def refuse():
        raise SandboxUnavailable("no namespaces")

    with Checkers(refuse) as checkers:
        assert checkers.verify(record(), "4").kind is VerdictKind.ABORTED
