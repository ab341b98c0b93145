"""A thousand spoilt answers through every family: a typed verdict each, no crash, no hang."""

import json
import random

import pytest
import reasoning_gym

from rufus_core.data.puzzle_kinds import REFUSED
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.reasoning import VERIFIERS, verify_reasoning
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.sandbox.isolation import probe
from rufus_core.sandbox.lazy import LazySandbox
from rufus_core.types import Message, Problem, VerdictKind
from tests.rewards.math_pairs import PAIRS

COUNT = 1000
JUNK = [
    *("\x00", "\ud800", "\U0010ffff", "\u202e", "\u200b", "\ufeff", "\u0301", "９", "٣", "Ⅷ", "ﬁ", "𝟘", "½", "²", "∑"),
    *(
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        "\\",
        "$",
        "$$",
        "&",
        "\\\\",
        "^",
        "_",
        "^{",
        "}{",
        "\\frac",
        "\\frac{",
        "\\sqrt{",
        "\\left(",
    ),
    *(
        "\\boxed{",
        "\\boxed{}",
        "\\text{",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\int",
        "\\sum_{n=1}^{\\infty}",
        "\\lim",
    ),
    *(
        "=",
        "= =",
        ",",
        ";",
        ":",
        "<",
        "\\le",
        "\\pm",
        "\\%",
        "%",
        "!",
        "!!",
        "/0",
        "**",
        "9^9^9^9",
        "10^{10^{10}}",
        "1e999999999",
    ),
    *(
        "nan",
        "inf",
        "-inf",
        "None",
        "True",
        "[]",
        "{}",
        "[[]]",
        "__import__('os')",
        "' or '1'='1",
        "</think>",
        "<think>",
        "\n\n",
    ),
    *("or 4", "and", "not", "x", "i", "e", "-", "0x1", "1_000", "#", '"', "'", "`", "```python\n", "{{7*7}}", "%s%n"),
    *("(" * 300, "{" * 300, "9" * 3000, "x+" * 500, " " * 3000, "\\frac{1}{" * 100, "a" * 30_000),
]


def spoil(text: str, rng: random.Random) -> str:
    """A few random edits of an answer."""
    for _ in range(rng.randint(1, 4)):
        position, kind = rng.randint(0, len(text)), rng.randrange(5)
        if kind == 0:
            text = text[:position] + text[position + 1 :]
        elif kind == 1:
            text = text[:position] + text[position : position + 8] * rng.randint(2, 5) + text[position + 8 :]
        elif kind == 2:
            text = text[::-1] if len(text) < 100 else text
        else:
            text = text[:position] + rng.choice(JUNK) + text[position:]
    return text


def originals() -> list[tuple[str, dict[str, object], str]]:
    """A family, a ground truth and an answer to spoil."""
    made: list[tuple[str, dict[str, object], str]] = []
    for rows in PAIRS.values():
        for gold, text, _ in rows[::3]:
            made += [("math", {"answer": gold}, text), ("arithmetic", {"answer": "8"}, text)]
    for gold in ("iron", "5 km/h", "(B) acid", "it does not dissolve"):
        made += [("science", {"answer": gold}, gold)] * 10
    made += [("calculation", {"answer": "8"}, "3 + 5 = 8")] * 10
    for name in sorted(set(reasoning_gym.factory.DATASETS) - set(REFUSED)):
        entry = json.loads(json.dumps(reasoning_gym.create_dataset(name, seed=3, size=1)[0]))
        made.append(("puzzle", {"dataset": name, "config": {}, "entry": entry}, entry["answer"]))
    if probe().isolated:
        source = "def check(answer):\n    return int(answer) % 2 == 0\n"
        made += [("puzzle", {"checker": source, "positive": ["4"], "negative": ["3"]}, "12")] * 10
    return made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_spoilt_answer_gets_a_verdict():
    rng, answers = random.Random(0), originals()
    assert {family for family, _, _ in answers} == set(VERIFIERS)
    rng.shuffle(answers)
    with MathVerifier(cpu_seconds=0.2) as math, LazySandbox(InterpreterPool) as sandbox:
        for number in range(COUNT):
            family, truth, answer = answers[number % len(answers)]
            problem = Problem.build(family, "test", [Message(role="user", content="?")], truth)
            spoilt = spoil(answer, rng)
            text = spoilt if rng.random() < 0.3 else rf"So \boxed{{{spoilt}}}"
            verdict = verify_reasoning(problem, text, math, sandbox=sandbox)
            # A machine that is too busy may abort a comparison; nothing else may end without a pass or a fail.
            assert verdict.counts or verdict.kind is VerdictKind.ABORTED, (verdict, text[:200])
            assert verdict.score == float(verdict.passed)
