"""`rufus grade`: verdicts on a file of responses."""

import json

import pytest
from typer.testing import CliRunner

from rufus_core.cli.main import app
from rufus_core.errors import DataError
from rufus_core.types import Message, Problem

NO_COMMA = {"prompt": "No comma.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
SUM = Problem.build("arithmetic", "sums", [Message(role="user", content="3 + 5")], {"answer": "8"})
TESTS = {"modality": "functional", "tests": ["assert add(1, 2) == 3"]}
ADD = "```python\ndef add(a, b):\n    return a + b\n```"


def grade(tmp_path, rows, *options):
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CliRunner().invoke(app, ["grade", str(file), *options], catch_exceptions=True)


def verdicts(tmp_path, rows):
    done = grade(tmp_path, rows, "--json")
    return [(row["family"], row["verdict"], row["extracted"]) for row in json.loads(done.stdout)]


def test_each_family_is_graded_by_its_stage_in_the_order_of_the_file(tmp_path):
    rows = [
        {"problem": SUM.model_dump(), "response": r"<think>3 and 5</think>\boxed{8}"},
        {"family": "math", "answer": r"\frac{1}{2}", "response": r"\boxed{0.5}"},
        {"family": "science", "answer": "iron", "response": "copper"},
        {"family": "python_function", "prompt": "add", "ground_truth": TESTS, "response": ADD},
        {
            "family": "instructions",
            "ground_truth": {"rubrics": [{"kind": "num_words", "count": 2}]},
            "response": "two words",
        },
        {"family": "math", "answer": "", "response": r"\boxed{0}"},
    ]
    assert verdicts(tmp_path, rows) == [
        ("arithmetic", "pass", "8"),
        ("math", "pass", "0.5"),
        ("science", "fail", "copper"),
        ("python_function", "pass", "def add(a, b):\n    return a + b"),
        ("instructions", "pass", "two words"),
        ("math", "unscorable", None),
    ]


def test_rows_of_public_sets_need_nothing_but_a_response(tmp_path):
    for package in ("lm_eval", "ifbench"):
        pytest.importorskip(package, reason="the extra `benchmarks` is not installed")
    rows = [
        {"question": "3 + 5?", "answer": "3 and 5 are 8. #### 8", "response": r"\boxed{8}"},
        {"problem": "Half of 1?", "solution": r"It is $\boxed{\frac12}$.", "response": r"\boxed{0.5}"},
        {"text": "Add.", "code": ADD, "test_list": ["assert add(1, 2) == 3"], "response": ADD},
        {
            **{"task_id": "T/0", "prompt": "def add(a, b):\n", "entry_point": "add", "canonical_solution": ""},
            **{"test": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "response": ADD},
        },
        {**NO_COMMA, "response": "one two"},
        {**NO_COMMA, "instruction_id_list": ["count:conjunctions"], "kwargs": [{"small_n": 1}], "response": "and"},
    ]
    families = [family for family, _, _ in verdicts(tmp_path, rows)]
    assert families == ["arithmetic", "arithmetic", "python_function", "python_function", "ifeval", "ifbench"]
    assert [verdict for _, verdict, _ in verdicts(tmp_path, rows[:4])] == ["pass"] * 4


def test_what_differs_from_the_expected_verdict_is_shown_and_is_exit_code_1(tmp_path):
    right = {"problem": SUM.model_dump(), "response": r"\boxed{8}"}
    rows = [right | {"expected": "pass"}, right | {"expected": False}, right]
    done = grade(tmp_path, rows, "--output", str(tmp_path / "verdicts.jsonl"))
    assert done.exit_code == 1
    assert "1 of 2 as expected" in done.stdout
    assert f"{tmp_path}/answers.jsonl:2: pass, expected fail" in done.stdout.splitlines()[-1]
    written = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert [(row["verdict"], row["expected"]) for row in written] == [
        ("pass", "pass"),
        ("pass", "fail"),
        ("pass", None),
    ]
    assert all(row["seconds"] > 0 for row in written)
    assert grade(tmp_path, rows[:1]).exit_code == 0


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"family": "math", "answer": "1"}, "answers.jsonl:1: the row has no text `response`"),
        ({"family": "math", "response": "1"}, "answers.jsonl:1: the row has no 'answer'"),
        ({"family": "geography", "answer": "1", "response": "1"}, "no verifier for the family 'geography'"),
        ({"problem": {"id": 3}, "response": "1"}, "answers.jsonl:1 id:"),
        (
            {"family": "math", "answer": "1", "response": "1", "expected": "yes"},
            "answers.jsonl:1 expected: 'yes' is no",
        ),
        ({"family": "math", "ground_truth": [], "response": "1"}, "answers.jsonl:1 ground_truth:"),
        ({"response": "1"}, "answers.jsonl:1: the row has no"),
        ({**NO_COMMA, "prompt": 1, "response": "1"}, "answers.jsonl:1 prompt: the row has no text"),
        ({**NO_COMMA, "instruction_id_list": ["x:y"], "response": "1"}, "answers.jsonl:1 instruction_id_list: x:y"),
        ({"family": "terminal", "ground_truth": {}, "response": "1"}, "answers.jsonl:1: ground_truth.workdir: Field"),
        ({"family": "shop", "ground_truth": {}, "response": "1"}, "answers.jsonl:1: ground_truth.world: Field"),
        ({"family": "person", "ground_truth": {"answer": "1"}, "response": "1"}, "answers.jsonl:1: a response to the"),
    ],
)
def test_a_row_that_cannot_be_graded_is_named(tmp_path, row, told):
    error = grade(tmp_path, [row]).exception
    assert isinstance(error, DataError)
    assert told in str(error)


def test_why_a_row_got_no_grade_is_shown_and_is_no_failure(tmp_path):
    truth = {"rubrics": [{"kind": "num_words", "words": 3}]}
    done = grade(tmp_path, [{"family": "instructions", "ground_truth": truth, "response": "one two three"}])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == (
        f"{tmp_path}/answers.jsonl:1: unscorable: the constraint 'num_words' lacks 'count'"
    )


def test_a_benchmark_of_instructions_is_graded_by_its_own_package(tmp_path):
    pytest.importorskip("lm_eval", reason="the extra `benchmarks` is not installed")
    truth = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    row = {"family": "ifeval", "prompt": "Use no comma.", "ground_truth": truth}
    rows = [
        row | {"response": "None here."},
        row | {"response": "One, here."},
        row | {"ground_truth": {}, "response": "x"},
    ]
    assert verdicts(tmp_path, rows) == [
        ("ifeval", "pass", "None here."),
        ("ifeval", "fail", "One, here."),
        ("ifeval", "unscorable", None),
    ]


def test_a_name_that_no_file_can_have_is_told(tmp_path):
    done = CliRunner().invoke(app, ["grade", str(tmp_path / ("x" * 300 + ".jsonl"))])
    assert isinstance(done.exception, DataError)
    assert "can't be read" in str(done.exception)
