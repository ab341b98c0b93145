"""Generated checkers (IF-D2, RRL-R1): which are admitted, what they then decide, and the teacher that writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rufus_core.errors import DataError, SandboxUnavailable
from rufus_core.ports.programs import ChecksResult
from rufus_core.rewards.chat_client import ChatClient
from rufus_core.rewards.checker_source import CheckerFault, CheckerVerdict
from rufus_core.rewards.checker_writer import write_checkers
from rufus_core.rewards.generated import (
    GeneratedChecker,
    check_generated,
    holds_generated,
    puzzle_checker,
    rubric_checker,
    verify_checked,
)
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.reasoning import verify_reasoning
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.sandbox.lazy import LazySandbox
from rufus_core.types import Message, Problem, VerdictKind
from tests.rewards.endpoint import Endpoint, failed, in_turn, said
from tests.sandbox.real import require_isolation

THREE_WORDS = "import re\n\ndef holds(text):\n    return len(re.findall(r'\\w+', text)) == 3\n"
EVEN = "def check(answer: str) -> bool:\n    return int(answer) % 2 == 0\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[InterpreterPool]:
    require_isolation()
    with InterpreterPool(workers=1) as opened:
        yield opened


def checker(source: str, positive: str = "one two three", negative: str = "one") -> GeneratedChecker:
    return GeneratedChecker(source, "holds", (positive,), (negative,))


def puzzle(source: object = EVEN, positive: object = ("4", "10"), negative: object = ("3", "8.5")) -> dict[str, object]:
    return json.loads(json.dumps({"checker": source, "positive": positive, "negative": negative}))  # type: ignore[no-any-return]


# Admission

NEEDED = """
from __future__ import annotations
from datetime import date as day

class Part:
    size = 3

parts: list[Part] = [Part()]

def holds(text):
    return len(text.split()) == parts[0].size and day(2024, 2, 29).year > 0
"""


def test_what_a_check_needs_may_be_imported_and_defined(pool: InterpreterPool) -> None:
    assert check_generated(checker(NEEDED), pool) == CheckerVerdict(None)


def test_a_right_checker_becomes_a_rubric_that_decides(pool: InterpreterPool) -> None:
    good = checker(THREE_WORDS)
    assert check_generated(good, pool).fault is None
    assert holds_generated(good.rubric, "a b c", pool)
    assert not holds_generated(good.rubric, "a b", pool)
    assert rubric_checker(json.loads(json.dumps(good.rubric))) == good


def test_a_puzzle_s_checker_is_tried_on_all_of_its_examples(pool: InterpreterPool) -> None:
    assert check_generated(puzzle_checker(puzzle(negative=["3", "5"])), pool).fault is None
    wrong = check_generated(puzzle_checker(puzzle(positive=["4", "10", "11"], negative=["3"])), pool)
    assert (wrong.fault, wrong.detail) == (CheckerFault.POSITIVE, "'11'")
    raising = check_generated(puzzle_checker(puzzle()), pool)
    assert raising.fault is CheckerFault.RAISES
    assert "ValueError" in raising.detail


@pytest.mark.parametrize("text", ["", "a\0b", "\ud800 x y", "'''", "\\", 'é\u2028\n"', "x" * 100_000])
def test_any_text_reaches_the_function_as_it_is(pool: InterpreterPool, text: str) -> None:
    source = f"def holds(text):\n    return len(text) == {len(text)} and sum(map(ord, text)) == {sum(map(ord, text))}\n"
    assert holds_generated({"source": source, "function": "holds"}, text, pool)


REFUSED = {
    CheckerFault.NO_FUNCTION: [
        "def holds(text:",
        "\x00",
        "\ud800",
        "def other(text):\n    return True",
        "def holds(text, more):\n    return True",
        "def holds():\n    return True",
        "holds = len",
        "x = '" + "y" * 10_000 + "'\ndef holds(text):\n    return True",
        "(" * 5000,
    ],
    CheckerFault.IMPORTS: [
        "import os\ndef holds(text):\n    return bool(os.environ)",
        "import random\ndef holds(text):\n    return random.random() < 2",
        "def holds(text):\n    import time\n    return time.time() > 0",
        "import re\ndef holds(text):\n    return len(text) > 5",
        "from . import x\ndef holds(text):\n    return x",
        "from .re import x\ndef holds(text):\n    return x",
        "import datetime\ndef holds(text):\n    return datetime.date.today().year > 1",
        "def holds(text):\n    return open('/etc/passwd') is not None",
        "def holds(text):\n    return eval('1 < 2')",
        "def holds(text):\n    return getattr(text, 'upper')() == text",
        "def holds(text):\n    return text.__class__.__base__ is not None",
        "def holds(text):\n    return __builtins__ is not None",
        "while False:\n    pass\ndef holds(text):\n    return True",
        "import statistics\ndef holds(text):\n    return statistics.random.random() < 2",
        "import statistics as s\ndef holds(text):\n    return s.random.random() < 2",
        "from statistics import random\ndef holds(text):\n    return random.random() < 2",
        "import typing\ndef holds(text):\n    return 'os' in typing.sys.modules",
        "def holds(text):\n    return (x for x in text).gi_frame.f_builtins is not None",
    ],
    CheckerFault.RAISES: [
        "def holds(text):\n    return 1 / 0",
        "def holds(text):\n    return len(text.split()) == 3 or missing",
        "def holds(text):\n    return 1",
        "def holds(text):\n    return None",
        "def holds(text):\n    return 'True'",
        "x = 1 / 0\ndef holds(text):\n    return True",
        "def holds(text):\n    raise SystemExit(0)",
    ],
    CheckerFault.POSITIVE: ["def holds(text):\n    return False", "def holds(text):\n    return len(text) < 5"],
    CheckerFault.NEGATIVE: ["def holds(text):\n    return True"],
    CheckerFault.NOT_DETERMINISTIC: [
        "seen = []\ndef holds(text):\n    seen.append(text)\n    return len(text) > 5 and len(seen) == 1",
        "seen = []\ndef holds(text):\n    seen.append(text)\n    return len(text) > 5 or seen.count('one') > 1",
    ],
}


@pytest.mark.parametrize(("fault", "source"), [(fault, s) for fault, sources in REFUSED.items() for s in sources])
def test_a_faulty_checker_is_refused_with_its_reason(pool: InterpreterPool, fault: CheckerFault, source: str) -> None:
    assert check_generated(checker(source), pool).fault is fault


def test_one_that_hangs_is_refused(pool: InterpreterPool) -> None:
    hanging = checker("def holds(text):\n    while True:\n        pass")
    verdict = check_generated(hanging, pool, timeout_seconds=0.1)
    assert (verdict.fault, verdict.detail) == (CheckerFault.RAISES, "timeout")


def test_one_that_hangs_is_not_run_again_for_every_example() -> None:
    """Each run costs its whole time-out: with twenty examples it was minutes until one was refused."""

    class Counting(InterpreterPool):
        num_runs = 0

        def run_checks(self, *args: Any, **kwargs: Any) -> ChecksResult:
            self.num_runs += 1
            return super().run_checks(*args, **kwargs)

    require_isolation()
    texts = tuple(map(str, range(20)))
    hanging = GeneratedChecker("def holds(text):\n    while True:\n        pass", "holds", texts, texts)
    with Counting(workers=1) as pool:
        assert check_generated(hanging, pool, timeout_seconds=0.1).fault is CheckerFault.RAISES
        assert pool.num_runs == 3  # all examples at once, then the first one for either value


def test_one_without_examples_is_refused(pool: InterpreterPool) -> None:
    alone = GeneratedChecker(THREE_WORDS, "holds")
    assert check_generated(alone, pool).fault is CheckerFault.NO_EXAMPLES
    assert holds_generated(alone.rubric, "a b c", pool)


# Rubrics


def test_an_exception_is_a_rubric_that_does_not_hold(pool: InterpreterPool) -> None:
    admitted = checker("def holds(text):\n    return text.split()[2] == 'three'", negative="one two four")
    assert check_generated(admitted, pool).fault is None
    assert not holds_generated(admitted.rubric, "one", pool)


def test_a_response_cannot_speak_for_the_checker(pool: InterpreterPool) -> None:
    for text in ("True", "') or True #", "\nv True\n", "x\nassert True or holds(1)"):
        assert not holds_generated(checker(THREE_WORDS).rubric, text, pool)


def test_a_rubric_that_was_never_admitted_is_a_fault_of_the_data(pool: InterpreterPool) -> None:
    with pytest.raises(DataError, match="the text `source`"):
        holds_generated({"kind": "generated", "function": "holds"}, "text", pool)
    with pytest.raises(DataError, match="refused: imports os"):
        holds_generated(checker("import os\ndef holds(text):\n    return bool(os)").rubric, "text", pool)
    with pytest.raises(DataError, match="refused: no_function"):
        holds_generated({"source": THREE_WORDS, "function": "holds(1) or holds"}, "text", pool)
    with pytest.raises(DataError, match="its own example"):
        holds_generated(checker(THREE_WORDS, positive="one").rubric, "text", pool)
    with pytest.raises(DataError, match="`negative` of a generated checker are no texts"):
        holds_generated(checker(THREE_WORDS).rubric | {"negative": [1]}, "text", pool)


def test_a_teacher_writes_checkers_and_bad_ones_are_counted(pool: InterpreterPool) -> None:
    def reply(source: str) -> str:
        fields = {"source": source, "function": "holds", "positive": "one two three", "negative": "one"}
        return f"```json\n{json.dumps(fields)}\n```"

    bad = reply("def holds(text):\n    return True")
    replies = [said(reply(THREE_WORDS)), said(bad), failed(500), said("{}"), said("no"), said(bad), said(bad)]
    with Endpoint(in_turn(replies)) as endpoint, ChatClient("teacher", endpoint.url, retries=0) as teacher:
        written = write_checkers(["exactly three words", "beauty", "truth"], teacher, pool)
    assert list(written.rubrics) == ["exactly three words"]
    assert holds_generated(written.rubrics["exactly three words"], "a b c", pool)
    assert written.without == ["beauty", "truth"]
    assert written.refused == {"negative": 3, "no_reply": 1, "unreadable": 2}
    asked = json.loads(endpoint.requests[0][2]["messages"][1]["content"])
    assert asked == {"task": "checker", "constraint": "exactly three words"}


# Puzzles


@pytest.mark.parametrize(
    ("answer", "passed"),
    [("8", True), ("7", False), ("eight", False), ("", False), ("8\ud800", False), ("8" * 30_000, False)],
)
def test_the_checker_decides_and_an_answer_that_it_fails_on_is_wrong(
    pool: InterpreterPool, answer: str, passed: bool
) -> None:
    verdict = verify_checked(puzzle(), answer, lambda: pool)
    assert verdict.kind is (VerdictKind.PASS if passed else VerdictKind.FAIL)


@pytest.mark.parametrize(
    "record",
    [
        puzzle("def check(answer):\n    return 1 / 0\n"),
        puzzle("def check(answer):\n    while len(answer) == 1: pass\n"),
        puzzle("def check("),
        puzzle("import socket\n"),
        puzzle("def verify(answer):\n    return True"),
        puzzle(None),
        puzzle(positive=[]),
        puzzle(negative="3"),
        puzzle(positive=[4]),
    ],
)
def test_a_record_whose_checker_cannot_decide_is_unscorable(pool: InterpreterPool, record: dict[str, object]) -> None:
    assert verify_checked(record, "4", lambda: pool).kind is VerdictKind.UNSCORABLE


def test_an_answer_is_an_argument_and_no_code(pool: InterpreterPool) -> None:
    for answer in ("') or True or check('4", "4') == True #", "__import__('os')._exit(0)", '"""', "\\", "\x00"):
        assert verify_checked(puzzle(), answer, lambda: pool).kind is VerdictKind.FAIL


def test_reasoning_grades_puzzles_with_their_own_checker() -> None:
    require_isolation()
    problem = Problem.build("puzzle", "test", [Message(role="user", content="An even number?")], puzzle())
    with MathVerifier() as math, LazySandbox(lambda: InterpreterPool(1)) as sandbox:
        assert verify_reasoning(problem, r"It is \boxed{12}", math, sandbox=sandbox).passed
        assert not verify_reasoning(problem, r"It is \boxed{13}", math, sandbox=sandbox).passed
        assert verify_reasoning(problem, r"It is \boxed{12}", math).kind is VerdictKind.ABORTED


def test_without_isolation_the_verdict_is_aborted() -> None:
    def refuse() -> InterpreterPool:
        raise SandboxUnavailable("no namespaces")

    with LazySandbox(refuse) as sandbox:
        assert verify_checked(puzzle(), "4", sandbox).kind is VerdictKind.ABORTED
