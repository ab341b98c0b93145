"""Coding records: what the schema takes, and the fault, with row and field, for what it doesn't (CRL-D2..D4)."""

import base64
import datetime
import json
import pickle
import zlib

import pytest

from rufus_core.data.code_layouts import read_code_records, record_from_row
from rufus_core.data.code_records import CodeRecord, FaultKind, RecordFault, read_tests, statement_in, statement_key
from rufus_core.errors import DataError
from tests.data.real import real

ROW = "problems.jsonl:7"
PAIR = {"input": "1\n", "output": "2\n"}
PROGRAM = {"statement": "Add one.", "modality": "stdin_stdout", "tests": [PAIR]}
FUNCTION = {"statement": "Add one.", "modality": "functional", "tests": ["assert f(1) == 2"], "entry_point": "f"}
LIVECODEBENCH = {"question_content": "Add one.", "starter_code": "", "public_test_cases": json.dumps([PAIR])}


def fault_of(row):
    with pytest.raises(RecordFault) as caught:
        record_from_row(row, ROW)
    assert str(caught.value).startswith(ROW)
    assert caught.value.row == ROW
    return caught.value.kind, caught.value.field


def packed(value, protocol=4):
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


@pytest.mark.parametrize(
    ("row", "kind", "field"),
    [
        ({}, FaultKind.UNKNOWN, ""),
        ({"statement": "Add one."}, FaultKind.UNKNOWN, ""),
        (PROGRAM | {"modality": "interactive"}, FaultKind.UNKNOWN, "modality"),
        (PROGRAM | {"modality": None}, FaultKind.MISSING, "modality"),
        (PROGRAM | {"modality": []}, FaultKind.UNKNOWN, "modality"),
        (PROGRAM | {"statement": None}, FaultKind.WRONG_TYPE, "statement"),
        (PROGRAM | {"statement": " "}, FaultKind.MISSING, "statement"),
        (PROGRAM | {"tests": []}, FaultKind.EMPTY, "tests"),
        (PROGRAM | {"tests": None}, FaultKind.WRONG_TYPE, "tests"),
        (PROGRAM | {"tests": "1"}, FaultKind.WRONG_TYPE, "tests"),
        (PROGRAM | {"tests": [PAIR, {"input": "1"}]}, FaultKind.MISSING, "tests[1].output"),
        (PROGRAM | {"tests": [PAIR, {"input": 1, "output": "1"}]}, FaultKind.WRONG_TYPE, "tests[1].input"),
        (PROGRAM | {"tests": [{"input": "1", "output": " \n"}]}, FaultKind.EMPTY, "tests"),
        (
            PROGRAM | {"tests": [{"input": "1", "output": "1" * (4 << 20) + "1"}]},
            FaultKind.TOO_LARGE,
            "tests[0].output",
        ),
        (PROGRAM | {"timeout_seconds": 0}, FaultKind.OUT_OF_RANGE, "timeout_seconds"),
        (PROGRAM | {"timeout_seconds": float("inf")}, FaultKind.OUT_OF_RANGE, "timeout_seconds"),
        (PROGRAM | {"timeout_seconds": "5"}, FaultKind.WRONG_TYPE, "timeout_seconds"),
        (PROGRAM | {"memory_mib": 0.5}, FaultKind.WRONG_TYPE, "memory_mib"),
        (PROGRAM | {"float_tolerance": -1e-6}, FaultKind.OUT_OF_RANGE, "float_tolerance"),
        (PROGRAM | {"float_tolerance": float("nan")}, FaultKind.OUT_OF_RANGE, "float_tolerance"),
        (PROGRAM | {"special_judge": ""}, FaultKind.EMPTY, "special_judge"),
        (PROGRAM | {"date": "yesterday"}, FaultKind.OUT_OF_RANGE, "date"),
        (FUNCTION | {"tests": ["assert f(1) == 2", " "]}, FaultKind.EMPTY, "tests"),
        (FUNCTION | {"tests": ["assert f(1) == 2", "assert f( == 2"]}, FaultKind.NOT_PYTHON, "tests[1]"),
        (FUNCTION | {"tests": ["(" * 10000]}, FaultKind.NOT_PYTHON, "tests[0]"),
        (FUNCTION | {"tests": ["-" * 100000 + "1"]}, FaultKind.NOT_PYTHON, "tests[0]"),
        (FUNCTION | {"setup": "import"}, FaultKind.NOT_PYTHON, "setup"),
        (FUNCTION | {"float_tolerance": 0.1}, FaultKind.WRONG_TYPE, "float_tolerance"),
        (FUNCTION | {"entry_point": 3}, FaultKind.WRONG_TYPE, "entry_point"),
        ({"text": "Add one.", "test_list": [3]}, FaultKind.WRONG_TYPE, "test_list[0]"),
        ({"text": "Add one.", "test_list": {}}, FaultKind.WRONG_TYPE, "test_list"),
        ({"question": "Add one.", "input_output": "{"}, FaultKind.WRONG_TYPE, "input_output"),
        ({"question": "Add one.", "input_output": "{}"}, FaultKind.MISSING, "input_output.inputs"),
        (
            {"question": "Add one.", "input_output": {"inputs": ["1"], "outputs": []}},
            FaultKind.MISMATCH,
            "input_output.outputs",
        ),
        (
            {"question": "Add one.", "input_output": {"inputs": [[1]], "outputs": [2], "fn_name": "f("}},
            FaultKind.WRONG_TYPE,
            "input_output.fn_name",
        ),
        ({"question": "Add one.", "test_cases": [{"input": "1"}]}, FaultKind.MISSING, "test_cases[0].output"),
        ({"canonical_solution": "", "prompt": "def f():", "entry_point": "f"}, FaultKind.MISSING, "test"),
        (
            {"canonical_solution": "", "prompt": "def f():", "entry_point": "f", "test": "x = 1"},
            FaultKind.MISSING,
            "test",
        ),
        ({"responses_create_params": {}, "verifier_metadata": {}}, FaultKind.MISSING, "responses_create_params.input"),
        (LIVECODEBENCH | {"public_test_cases": "[1]"}, FaultKind.MISSING, "test_cases.input"),
        (LIVECODEBENCH | {"private_test_cases": "AAAA"}, FaultKind.WRONG_TYPE, "private_test_cases"),
        (
            LIVECODEBENCH | {"private_test_cases": packed(datetime.date(2024, 1, 1))},
            FaultKind.WRONG_TYPE,
            "private_test_cases",
        ),
        (LIVECODEBENCH | {"private_test_cases": packed(["a", "b"])}, FaultKind.WRONG_TYPE, "private_test_cases"),
    ],
)
def test_a_fault_names_row_kind_and_field(row, kind, field):
    assert fault_of(row) == (kind, field)


def test_a_faulty_row_is_told_and_the_others_are_read(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in [PROGRAM, {"modality": "functional"}, FUNCTION]))
    first, fault, last = read_code_records(path)
    assert (first.row, last.row) == (f"{path}:1", f"{path}:3")
    assert (fault.row, fault.field, fault.kind) == (f"{path}:2", "", FaultKind.MISSING)
    path.write_text("{")
    with pytest.raises(DataError, match=r"problems.jsonl:1"):
        list(read_code_records(path))


def test_the_problem_has_one_system_prompt_for_each_modality_and_no_tests_CRL_D2():
    function, program = (record_from_row(row, ROW).problem("mine") for row in (FUNCTION, PROGRAM))
    assert (function.family, program.family) == ("python_function", "python_program")
    assert function.prompt[0].content != program.prompt[0].content
    assert all("one fenced python block" in problem.prompt[0].content for problem in (function, program))
    assert function.prompt[1].content == "Add one.\n\nIts name is `f`."
    assert program.prompt[1].content == "Add one."
    assert "assert" not in function.prompt[1].content


@pytest.mark.parametrize("name", ["f", "add"])
@pytest.mark.parametrize("starter", ["", "def f(x):\n    pass\n", "# Start from this code:\n\n"])
@pytest.mark.parametrize("statement", ["Add one.", "Add one.\n\n```python\nf(1) == 2\n```", "Its name is `f`."])
def test_the_statement_is_found_in_the_prompt_CRL_D4(statement, starter, name):
    record = record_from_row(FUNCTION | {"statement": statement, "starter_code": starter, "entry_point": name}, ROW)
    assert statement_in(record.problem("mine").prompt[1].content) == statement


def test_a_ground_truth_keeps_all_that_grades():
    judged = PROGRAM | {
        "timeout_seconds": 2.5,
        "memory_mib": 256,
        "special_judge": "print(1)",
        "platform": "AtCoder",
        "date": "2022-01-31",
    }
    truth = record_from_row(judged, ROW).problem("mine").ground_truth
    assert {"platform": "atcoder", "date": "2022-01-31"}.items() <= truth.items()
    assert json.loads(json.dumps(truth)) == truth
    tests = read_tests(truth)
    assert (tests.timeout_seconds, tests.memory_mib, tests.special_judge) == (2.5, 256, "print(1)")
    assert tests.tests[0].model_dump() == PAIR
    tolerant = record_from_row(PROGRAM | {"float_tolerance": 1e-6}, ROW).problem("mine")
    assert read_tests(tolerant.ground_truth).float_tolerance == 1e-6


def test_the_key_ignores_case_and_whitespace_CRL_D4():
    assert record_from_row(PROGRAM).key == statement_key("add  ONE.\n")
    assert record_from_row(PROGRAM).key != statement_key("add one")


def test_calls_become_asserts():
    row = {"question": "Add.", "input_output": json.dumps({"inputs": [[1, "a"]], "outputs": [[3]], "fn_name": "f"})}
    assert record_from_row(row).tests.tests == ("assert f(1, 'a') in (3, [3])",)
    row = {"question": "Add.", "inputs": [[1], [2]], "outputs": [[3], [4, 5]], "fn_name": "f"}
    assert record_from_row(row).tests.tests == ("assert f(1) == [3]", "assert f(2) == [4, 5]")
    record = record_from_row(row | {"starter_code": "class Solution:\n    def f(self, x):\n"})
    assert record.tests.tests[0] == "assert Solution().f(1) == [3]"
    assert "class Solution" in record.problem("mine").prompt[1].content


@pytest.mark.parametrize("protocol", range(5))
def test_packed_test_cases_of_livecodebench_are_read_without_loading_them(protocol):
    hidden = [{"input": "[1]\n2", "output": "true", "testtype": "functional"}]
    row = {
        "question_content": "Say whether.",
        "starter_code": "class Solution:\n    def f(self, a, b):\n        ",
        "public_test_cases": json.dumps([{"input": "[2]\n3", "output": "[null]", "testtype": "functional"}]),
        "private_test_cases": packed(json.dumps(hidden), protocol),
        "metadata": '{"func_name": "f"}',
        "platform": "leetcode",
        "contest_date": "2023-08-21T00:00:00",
        "question_id": "17",
    }
    record = record_from_row(row)
    assert record.tests.tests == ("assert Solution().f([2], 3) == [None]", "assert Solution().f([1], 2) == True")
    assert (record.platform, record.date, record.name) == ("leetcode", datetime.date(2023, 8, 21), "17")


def test_humaneval_keeps_helpers_and_what_is_more_than_asserts():
    prompt = 'import math\n\ndef half(x):\n    return x / 2\n\n\ndef f(x):\n    """Twice."""\n'
    asserts = ["assert candidate(1) == 2, 'one'", "assert half(candidate(2)) == 2", "assert True"]
    check = "\n    ".join(["def check(candidate):", *asserts])
    row = {"prompt": prompt, "canonical_solution": "    return 2 * x\n", "entry_point": "f", "test": check}
    record = record_from_row(row)
    assert record.tests.tests == ("assert f(1) == 2, 'one'", "assert half(f(2)) == 2")
    assert record.tests.setup == "import math\ndef half(x):\n    return x / 2"
    looped = row | {"test": "def check(candidate):\n    for x in range(3):\n        assert candidate(x) == 2 * x\n"}
    assert record_from_row(looped).tests.tests == (looped["test"].strip() + "\ncheck(f)",)


@pytest.mark.parametrize(
    ("name", "num_rows"),
    [
        ("mbpp/mbpp.jsonl", 974),
        ("humaneval/HumanEval.jsonl.gz", 164),
        ("code/code_gen_example.jsonl", 5),
        ("code/nemo_skills_code_execution.jsonl", 4),
    ],
)
def test_public_files_are_read_without_a_fault(name, num_rows):
    read = list(read_code_records(real(name)))
    assert len(read) == num_rows
    assert all(isinstance(each, CodeRecord) for each in read)
    assert all(each.problem("mine").ground_truth["tests"] for each in read)


def test_nemo_gym_statements_come_without_the_request_before_them():
    for record in read_code_records(real("code/code_gen_example.jsonl")):
        assert record.platform == "codeforces"
        assert "python programming language" not in record.statement
        assert "-----Input-----" in record.statement
