"""1,000 mutated records and responses: a typed fault or a verdict each, no crash, no hang."""

import copy
import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from rufus_core.data.code_filters import filter_records
from rufus_core.data.code_layouts import record_from_row
from rufus_core.data.code_leakage import LeakageReference
from rufus_core.data.code_records import CodeRecord, RecordFault
from rufus_core.rewards.code import tests_pass as verify
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.types import Message, Problem, Verdict, VerdictKind
from tests.sandbox.real import require_isolation

SECONDS = 0.2
HUGE = 10_000_000  # characters
DEEP = json.loads("[" * 900 + "]" * 900)
PAIRS = [{"input": "1\n", "output": "2\n"}, {"input": "2\n", "output": "3\n"}]
CHECK = "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(2) == 3\n"
USUAL = {"inputs": [[1], [2]], "outputs": [2, 3], "fn_name": "f"}
ASKED = [{"role": "user", "content": "Add one."}]
ROWS = [
    {"statement": "Add one.", "modality": "stdin_stdout", "tests": PAIRS, "timeout_seconds": 0.3, "memory_mib": 64},
    {
        "statement": "Add one.",
        "modality": "stdin_stdout",
        "tests": PAIRS,
        "special_judge": "print(1)",
        "date": "2020-01-01",
    },
    {
        "statement": "Add one.",
        "modality": "stdin_stdout",
        "tests": PAIRS,
        "float_tolerance": 1e-6,
        "platform": "atcoder",
    },
    {
        "statement": "Add one.",
        "modality": "functional",
        "tests": ["assert f(1) == 2", "assert f(2) == 3"],
        "setup": "x = 1",
    },
    {"responses_create_params": {"input": ASKED}, "verifier_metadata": {"unit_tests": USUAL}},
    {
        "question_content": "Add one.",
        "starter_code": "def f(x):",
        "public_test_cases": json.dumps(PAIRS),
        "private_test_cases": "eJwrAAAAewB7",
        "metadata": '{"func_name": "f"}',
    },
    {"text": "Add one.", "test_list": ["assert f(1) == 2"], "test_setup_code": "", "code": "def f(x): return x + 1"},
    {"prompt": "def f(x):\n", "canonical_solution": "    return x + 1", "entry_point": "f", "test": CHECK},
    {"description": "Add one.", "test_cases": PAIRS, "is_correct": True, "code": "print(int(input()) + 1)"},
    {"question": "Add one.", "input_output": json.dumps(USUAL), "source": "codeforces", "starter_code": None},
    {"question": "Add one.", "inputs": ["1"], "outputs": ["2"]},
]
ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    float("nan"),
    float("inf"),
    10**400,
    "",
    " ",
    "x",
    "\0",
    "\ud800",
    "é\u2028\x0c",
    "🙂" * 99,
    [],
    {},
    [None],
    [[]],
    {"a": {}},
    DEEP,
    "[" * 5000,
    "(" * 5000,
    "-" * 9000 + "1",
    "assert f(",
    "assert while",
    "while True: pass",
    "import time\ntime.sleep(9)",
    "assert f(1) == " + "[" * 80 + "]" * 80,
    "assert f(10**9**9) == 1",
    "import os\nos._exit(0)",
    "__import__('os').kill(1, 9)",
    "raise SystemExit",
    "1 / 0",
    "assert f.__globals__.clear()",
]
PROGRAMS = [
    "def f(x):\n    return x + 1\nif __name__ == '__main__':\n    print(f(int(input())))",
    "def f(x): return None",
    "print('2')",
    "while True: pass",
    "f = lambda x: (lambda g: g(g))(lambda g: g(g))",
    "x = [0]\nwhile True: x += x",
    "while True: print('x' * 9999)",
    "def f(:",
    "\0\ud800",
    "class f(int):\n    __eq__ = lambda self, other: True",
    "import os\nos.fork()\nos._exit(0)",
    "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x)\nf(1)",
]
WRAPPINGS = [
    "{}",
    "```\n{}\n```",
    "```python\n{}",
    "<think>```python\n{}\n```",
    "~~~py\n{}\n~~~",
    "```python\n{}\n```\n```python",
    "```python\r\n{}\r\n```",
    "</think></think>```python\n{}\n```",
    "```python\n```\n{}",
    "```python3\n{}\n```\n```text\n```",
]


def mutated(value, rng):
    """The value with one to three places replaced, removed, doubled or cut."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(value))
        if not places:
            break
        parent, key = rng.choice(places)
        match rng.randrange(5):
            case 0:
                del parent[key]
            case 1 if isinstance(parent[key], str):
                cut = rng.randrange(len(parent[key]) + 1)
                parent[key] = parent[key][:cut] + rng.choice(["", "\0", "\ud800", "\n", "'"]) + parent[key][cut + 1 :]
            case 2 if isinstance(parent[key], list):
                parent[key] *= 2
            case _:
                parent[key] = copy.copy(rng.choice(ODD))
    return value


def _places(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        if inner is not DEEP:
            yield from _places(inner)


def response(rng):
    program = rng.choice(PROGRAMS if rng.random() < 0.5 else PROGRAMS[:3])
    return (rng.choice(WRAPPINGS) if rng.random() < 0.3 else "```python\n{}\n```").format(program)


def ground_truth(row):
    """Of a row that is whole, as a problem set holds it."""
    return record_from_row(row).problem("fuzz").ground_truth


def record_or_fault(row, where):
    try:
        return record_from_row(row, where)
    except RecordFault as fault:
        return fault


@pytest.fixture(scope="module")
def pool():
    require_isolation()
    with InterpreterPool(2, memory_bytes=256 << 20) as pool:
        yield pool


def verdict_of(truth, text, pool, content="Add one."):
    prompt = (Message(role="user", content=content),) if content is not None else ()
    problem = Problem(id="fuzz", family="code", source="fuzz", prompt=prompt, ground_truth=truth)
    verdict = verify(problem, text, pool, seconds_per_test=SECONDS)
    assert isinstance(verdict, Verdict)
    assert "\n" not in verdict.reason or verdict.kind is VerdictKind.UNSCORABLE
    assert verdict.passed or verdict.reason
    return verdict


def test_mutated_rows_are_read_or_refused():
    rng = random.Random(0)
    read = [record_or_fault(mutated(rng.choice(ROWS), rng), f"row:{number}") for number in range(1000)]
    faults = [each for each in read if isinstance(each, RecordFault)]
    assert 100 < len(faults) < 900
    assert all(str(fault).startswith("row:") and fault.what for fault in faults)
    kept, report = filter_records(read, LeakageReference({"q": "Add two."}))
    assert len(kept) + len(report.dropped) == 1000
    json.dumps(report.as_dict())
    for record in read:
        if isinstance(record, CodeRecord):
            assert record.key


def test_mutated_ground_truths_and_responses_get_a_verdict(pool):
    rng = random.Random(1)
    truths = [ground_truth(row) for row in ROWS if "private_test_cases" not in row]
    tasks = []
    for _ in range(1000):
        truth = mutated(rng.choice(truths), rng) if rng.random() < 0.7 else rng.choice(truths)
        if isinstance(truth.get("timeout_seconds"), int | float):
            truth = truth | {"timeout_seconds": min(truth["timeout_seconds"], SECONDS)}
        tasks.append((truth, response(rng), rng.choice(["Add one.", "\ud800", "", None])))
    with ThreadPoolExecutor(2) as threads:  # as many as the pool has workers
        found = list(threads.map(lambda task: verdict_of(task[0], task[1], pool, task[2]), tasks))
    kinds = Counter(each.kind for each in found)
    assert kinds[VerdictKind.ABORTED] == 0
    assert min(kinds[kind] for kind in (VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.UNSCORABLE)) >= 50, kinds


HUGE_TRUTHS = {
    "an assert": {"modality": "functional", "tests": ["assert f(1) == '" + "x" * HUGE + "'"]},
    "an input": {"modality": "stdin_stdout", "tests": [{"input": "1" * HUGE, "output": "2"}]},
    "an output": {"modality": "stdin_stdout", "tests": [{"input": "1", "output": "2" * HUGE}]},
    "a judge": {"modality": "stdin_stdout", "tests": PAIRS, "special_judge": "#" * HUGE},
    "a setup": {"modality": "functional", "tests": ["assert f(1) == 2"], "setup": "#" * HUGE},
}


@pytest.mark.parametrize("part", HUGE_TRUTHS)
def test_ten_megabytes_in_a_record(part, pool):
    verdict = verdict_of(HUGE_TRUTHS[part], f"```python\n{PROGRAMS[0]}\n```", pool)
    assert verdict.kind in (VerdictKind.FAIL, VerdictKind.UNSCORABLE)


@pytest.mark.parametrize(
    "text",
    [
        "x" * HUGE,
        "```" * (HUGE // 3),
        "```python\n" * (HUGE // 10),
        "```python\n" + "#" * HUGE + "\n```",
        "```python\n" + "x = 1\n" * (HUGE // 6) + "```",
        "```python\nprint('x' * " + str(HUGE) + ")\n```",
        "<think>" * (HUGE // 7),
    ],
    ids=["text", "ticks", "openings", "a comment", "statements", "an output", "thoughts"],
)
def test_ten_megabytes_in_a_response(text, pool):
    for truth in (
        {"modality": "stdin_stdout", "tests": PAIRS},
        {"modality": "functional", "tests": ["assert f(1) == 2"]},
    ):
        assert verdict_of(truth, text, pool).kind is VerdictKind.FAIL
