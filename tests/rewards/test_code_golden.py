"""Public solutions and rollouts against the verifier: right ones pass, mutated ones fail, rewards agree.

By default a sample of MBPP, and of the mutants; `RUFUS_GOLDEN=all` takes all.
"""

import itertools
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from rufus_core.data.code_layouts import read_code_records, record_from_row
from rufus_core.rewards import code as rewards
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.types import VerdictKind
from tests.data.real import real
from tests.rewards.mutants import MUTATIONS, mutants, returning
from tests.sandbox.real import require_isolation

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # escape sequences in what is parsed
ALL = os.environ.get("RUFUS_GOLDEN") == "all"
FILES = {"mbpp": "mbpp/mbpp.jsonl", "humaneval": "humaneval/HumanEval.jsonl.gz"}
NUM_RECORDS = {"mbpp": 974 if ALL else 150, "humaneval": 164}
# The least share of mutants that the data sets' own tests kill; the rest are equal programs, or tests too few to tell.
KILLED = {
    "mbpp": {"constant": 0.75, "comparison": 0.94, "off_by_one": 0.15, "arithmetic": 0.9, "removed": 0.9},
    "humaneval": {"constant": 0.8, "comparison": 0.97, "off_by_one": 0.4, "arithmetic": 0.9, "removed": 0.9},
}


@pytest.fixture(scope="module")
def pool():
    require_isolation()
    with InterpreterPool(2) as pool:
        yield pool


def records(name):
    """All, or every sixth of MBPP's."""
    step = 1 if ALL or name == "humaneval" else 6
    return list(itertools.islice(read_code_records(real(FILES[name])), 0, None, step))[: NUM_RECORDS[name]]


def fenced(code):
    return f"```python\n{code}\n```"


def verdicts(pool, tasks, seconds=10.0):
    """One for each (record, code), with as many threads as the pool has workers."""

    def verify(task):
        record, code = task
        return rewards.tests_pass(record.problem("golden"), fenced(code), pool, seconds_per_test=seconds)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(verify, tasks))


@pytest.mark.parametrize("name", FILES)
def test_every_reference_solution_passes(name, pool):
    tasks = [(record, record.solutions[0]) for record in records(name)]
    assert len(tasks) == NUM_RECORDS[name]
    found = verdicts(pool, tasks, seconds=60.0)  # one takes seconds, and more on a busy machine
    assert [(task[0].name, each.reason) for task, each in zip(tasks, found, strict=True) if not each.passed] == []


@pytest.mark.parametrize("value", ["None", "object()"])
@pytest.mark.parametrize("name", FILES)
def test_no_solution_that_returns_another_value_passes(name, value, pool):
    tasks = [(record, returning(record.solutions[0], value)) for record in records(name)]
    assert {each.kind for each in verdicts(pool, tasks, seconds=1.0)} == {VerdictKind.FAIL}


@pytest.mark.parametrize("name", FILES)
def test_most_mutants_fail(name, pool):
    chosen = records(name)[:: 1 if ALL else 3]
    for kind in MUTATIONS:
        places = None if ALL else 1  # of each solution
        tasks = [
            (record, mutant)
            for record in chosen
            for mutant in itertools.islice(mutants(record.solutions[0], kind), places)
        ]
        found = verdicts(pool, tasks, seconds=1.0)
        assert {each.kind for each in found} <= {VerdictKind.PASS, VerdictKind.FAIL}
        killed = sum(not each.passed for each in found)
        print(f"{name} {kind}: {killed} of {len(found)} killed")
        assert killed >= KILLED[name][kind] * len(found)


def test_nemo_skills_records_agree_with_their_is_correct(pool):
    rows = [json.loads(line) for line in real("code/nemo_skills_code_execution.jsonl").open()]
    tasks = [(record_from_row(row), row["code"]) for row in rows]
    assert [each.passed for each in verdicts(pool, tasks)] == [row["is_correct"] for row in rows]


def test_code_gen_rollouts_get_their_rewards(pool):
    statements = {record.statement: record for record in read_code_records(real("code/code_gen_example.jsonl"))}
    rewarded = []
    for line in real("code/code_gen_rollouts.jsonl").open():
        rollout = json.loads(line)
        prompt = rollout["responses_create_params"]["input"][-1]["content"]
        (record,) = [record for statement, record in statements.items() if statement in prompt]
        text = rollout["response"]["output"][-1]["content"][-1]["text"]
        verdict = rewards.tests_pass(record.problem("golden"), text, pool)
        rewarded.append((verdict.score, rollout["reward"]))
    assert [ours for ours, _ in rewarded] == [theirs for _, theirs in rewarded]
    assert sum(ours for ours, _ in rewarded) == 1


def test_livecodebench_few_shot_answers_pass_their_statements_examples(pool):
    tasks = []
    for shot in json.loads(real("code/lcb_fewshot_func.json").read_text()):
        examples = re.findall(r"Input: (.+)\nOutput: (.+)", shot["question"])
        arguments = ["\n".join(re.findall(r"\w+ = (\[.*?\]|\".*?\")", given)) for given, _ in examples]
        name = re.search(r"def (\w+)", shot["sample_code"])[1]
        cases = [
            {"input": i, "output": o, "testtype": "functional"} for i, (_, o) in zip(arguments, examples, strict=True)
        ]
        row = {"question_content": shot["question"], "starter_code": shot["sample_code"]}
        row |= {"public_test_cases": json.dumps(cases), "metadata": json.dumps({"func_name": name})}
        assert len(cases) >= 2
        tasks.append((record_from_row(row), shot["answer"]))
    for shot in json.loads(real("code/lcb_fewshot_stdin.json").read_text()):
        examples = re.findall(r"\nInput\n+(.+?)\n+Output\n+(.+?)(?=\n\n\n|\n+Note|\Z)", shot["question"], re.DOTALL)[
            -3:
        ]
        cases = [{"input": i, "output": o, "testtype": "stdin"} for i, o in examples if i[0].isdigit()]
        assert cases
        row = {"question_content": shot["question"], "starter_code": "", "public_test_cases": json.dumps(cases)}
        tasks.append((record_from_row(row), shot["answer"]))
    assert [each.reason for each in verdicts(pool, tasks)] == [""] * 4
    wrong = [(record, answer.replace("return", "return 1 +").replace("print(", "print(1,")) for record, answer in tasks]
    assert {each.kind for each in verdicts(pool, wrong)} == {VerdictKind.FAIL}
