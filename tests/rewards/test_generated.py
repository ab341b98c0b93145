"""Generated checkers (IF-D2): which are admitted, what they then decide, and the teacher that writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from rufus_core.errors import DataError
from rufus_core.rewards.chat_client import ChatClient
from rufus_core.rewards.checker_writer import write_checkers
from rufus_core.rewards.generated import CheckerFault, GeneratedChecker, check_generated, holds_generated
from rufus_core.sandbox.interpreter import InterpreterPool
from tests.rewards.endpoint import Endpoint, failed, in_turn, said
from tests.sandbox.real import require_isolation

THREE_WORDS = "import re\n\ndef holds(text):\n    return len(re.findall(r'\\w+', text)) == 3\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[InterpreterPool]:
    require_isolation()
    with InterpreterPool(workers=1) as opened:
        yield opened


def checker(source: str, positive: str = "one two three", negative: str = "one") -> GeneratedChecker:
    return GeneratedChecker(source, "holds", positive, negative)


def test_a_right_checker_becomes_a_rubric_that_decides(pool: InterpreterPool) -> None:
    good = checker(THREE_WORDS)
    assert check_generated(good, pool).fault is None
    assert holds_generated(good.rubric, "a b c", pool)
    assert not holds_generated(good.rubric, "a b", pool)


@pytest.mark.parametrize("text", ["", "a\0b", "\ud800 x y", "'''", "\\", 'é\u2028\n"', "x" * 100_000])
def test_any_text_reaches_the_function_as_it_is(pool: InterpreterPool, text: str) -> None:
    source = f"def holds(text):\n    return len(text) == {len(text)} and sum(map(ord, text)) == {sum(map(ord, text))}\n"
    assert holds_generated(checker(source).rubric, text, pool)


REFUSED = {
    CheckerFault.NO_FUNCTION: [
        "def holds(text:",
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
        "def holds(text):\n    return open('/etc/passwd') is not None",
        "def holds(text):\n    return eval('1 < 2')",
        "def holds(text):\n    return text.__class__.__base__ is not None",
        "while False:\n    pass\ndef holds(text):\n    return True",
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


def test_an_exception_is_a_rubric_that_does_not_hold(pool: InterpreterPool) -> None:
    admitted = checker("def holds(text):\n    return text.split()[2] == 'three'", negative="one two four")
    assert check_generated(admitted, pool).fault is None
    assert not holds_generated(admitted.rubric, "one", pool)


def test_a_response_cannot_speak_for_the_checker(pool: InterpreterPool) -> None:
    for text in ("True", "') or True #", "\nv True\n", "x\nassert True or holds(1)"):
        assert not holds_generated(checker(THREE_WORDS).rubric, text, pool)


def test_a_rubric_that_was_never_admitted_is_a_fault_of_the_data(pool: InterpreterPool) -> None:
    with pytest.raises(DataError, match="lacks 'source'"):
        holds_generated({"kind": "generated", "function": "holds"}, "text", pool)
    with pytest.raises(DataError, match="refused: imports os"):
        holds_generated(checker("import os\ndef holds(text):\n    return bool(os)").rubric, "text", pool)
    with pytest.raises(DataError, match="refused: no_function"):
        holds_generated({"source": THREE_WORDS, "function": "holds(1) or holds"}, "text", pool)


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
