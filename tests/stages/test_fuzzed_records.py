"""A thousand spoilt records and answers on the path of `rufus grade`: a typed verdict, or a fault with its line."""

from __future__ import annotations

import copy
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import reasoning_gym

from rufus_core.data.answers import Answer, read_answers
from rufus_core.data.catalogue import GENERATORS
from rufus_core.data.puzzle_kinds import REFUSED
from rufus_core.errors import DataError
from rufus_core.recipe.load import load_recipe
from rufus_core.stages import STAGE_OF_FAMILY, STAGES
from rufus_core.stages.grade import grade
from rufus_core.types import Json, Verdict, VerdictKind
from tests.rewards.endpoint import Endpoint, in_turn, said
from tests.rewards.test_fuzzed_answers import JUNK as ODD_TEXTS
from tests.rewards.test_fuzzed_answers import spoil
from tests.sandbox.real import require_isolation

COUNT = 1000
SEED = 5
ODD_VALUES: list[Json] = [
    *(None, True, False, 0, -1, -(2**63), 10**30, 0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), "", " ", "0"),
    *([], {}, [[]], [None], {"": None}, {"kind": "judge"}, "x" * 100_000, ["y"] * 1000, "\x00", "\u202eabc", "\ud800"),
    "__import__('os')._exit(1)",
]
FAMILIES = [family for name in ("reasoning_rl", "coding_rl", "if_rl", "rlhf") for family in STAGES[name].families]
IFEVAL = [
    {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    {"instruction_id_list": ["length_constraints:number_words"], "kwargs": [{"relation": "at least", "num_words": 3}]},
    {
        "instruction_id_list": ["keywords:existence", "language:response_language"],
        "kwargs": [{"keywords": ["ship", "sea"]}, {"language": "en"}],
        "mode": "loose",
    },
]
IFBENCH = [
    {"instruction_id_list": ["count:word_count_range"], "kwargs": [{"min_words": 1, "max_words": 9}]},
    {"instruction_id_list": ["format:options"], "kwargs": [{"options": "yes/no"}]},
]
GENERATED = {
    "kind": "generated",
    "source": "def holds(text):\n    return len(text.split()) == 3\n",
    "function": "holds",
    "positive": ["a b c"],
    "negative": ["a"],
}
PYTHON_JUDGE = "import sys\nprint(int(open(sys.argv[3]).read() == open(sys.argv[2]).read()))\n"


def _row(family: str, truth: dict[str, Json], response: str, prompt: Json = "Say what is asked.") -> dict[str, Json]:
    return {"family": family, "prompt": prompt, "ground_truth": truth, "response": response}


def _generated(name: str, count: int, **options: Json) -> Iterator[dict[str, Json]]:
    generator = GENERATORS[name]
    for problem in generator.problems(SEED, count, options):
        last = generator.demonstrate(problem, random.Random(SEED), False)[-1]
        yield {"problem": problem.model_dump(mode="json"), "response": last.content}


def _originals() -> dict[str, list[dict[str, Json]]]:
    """Sound records of every family that a text answers, with a right answer each."""
    rows: dict[str, list[dict[str, Json]]] = {}
    for name in (
        "arithmetic",
        "puzzles",
        "science",
        "python_functions",
        "python_programs",
        "instructions",
        "constraints",
    ):
        rows[name] = list(_generated(name, 6))
    rows["calculation"] = list(_generated("arithmetic", 6, one_shot=True, max_operand=19))
    rows["math"] = [
        _row("math", {"answer": a}, rf"So \boxed{{{a}}}") for a in (r"\frac{1}{2}", "(1, 2]", "x^2 + 1", "7")
    ]
    rows["reasoning_gym"] = []
    for name in sorted(set(reasoning_gym.factory.DATASETS) - set(REFUSED)):
        entry = json.loads(json.dumps(reasoning_gym.create_dataset(name, seed=3, size=1)[0]))
        truth = {"dataset": name, "config": {}, "entry": entry}
        rows["reasoning_gym"].append(_row("puzzle", truth, str(entry["answer"])))
    even = {"checker": "def check(answer):\n    return int(answer) % 2 == 0\n", "positive": ["4"], "negative": ["3"]}
    rows["checked"] = [_row("puzzle", even, "12")]
    judged = {"modality": "stdin_stdout", "tests": [{"input": "1\n", "output": "1\n"}], "special_judge": PYTHON_JUDGE}
    rows["special_judge"] = [_row("python_program", judged, "```python\nprint(input())\n```")]
    rows["rubrics"] = [
        _row("instructions", {"rubrics": rubrics}, "a ship, please")
        for rubrics in ([GENERATED], [{"kind": "judge", "question": "Is it short?"}], [{"kind": "polite"}, GENERATED])
    ]
    for family, package, truths in (("ifeval", "lm_eval", IFEVAL), ("ifbench", "ifbench", IFBENCH)):
        if find_spec(package):
            rows[family] = [_row(family, truth, "A ship at sea. Yes") for truth in truths]
    return rows


def _places(value: Json, path: tuple[Json, ...] = ()) -> Iterator[tuple[Json, ...]]:
    """Where values stand in a record."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from _places(each, (*path, key))


def _changed(row: dict[str, Json], rng: random.Random) -> dict[str, Json]:
    """The row with a value left out, exchanged or corrupted, and at times with more than one."""
    row = copy.deepcopy(row)
    if rng.random() < 0.05:
        row.get("problem", row)["family"] = rng.choice(FAMILIES)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(row))
        telling = [place for place in places if {"ground_truth", "response"} & set(place[:2])]
        *path, key = rng.choice(telling if telling and rng.random() < 0.9 else places or [("family",)])
        holder: Json = row
        for step in path:
            holder = holder[step]
        value = holder[key]
        match rng.randrange(6):
            case 0:
                del holder[key]
            case 1:
                holder[key] = [value] if rng.random() < 0.5 else {"value": value}
            case 2:
                holder[key] = f"nest {rng.choice((3, 200, 700, 3000, 100_000))}"
            case 3 | 4 if isinstance(value, str):
                holder[key] = spoil(value, rng)
            case 3 if isinstance(value, int | float):
                holder[key] = -value if rng.random() < 0.5 else str(value)
            case _:
                holder[key] = copy.deepcopy(rng.choice([*ODD_VALUES, rng.choice(ODD_TEXTS)]))
    return row


def _read(path: Path, row: dict[str, Json]) -> Answer | None:
    """The row as `rufus grade` reads it; None if it is refused, with its line."""
    try:
        path.write_text(_line(row) + "\n", encoding="utf-8")
        (answer,) = read_answers(path)
    except DataError as error:
        if not (error.where or "").startswith(f"{path}:1"):
            raise
        return None
    return answer


def _line(row: dict[str, Json]) -> str:
    """The row as JSON; nests of lists are written as text, for no recursion here reaches as deep."""
    return re.sub(r'"nest (\d{1,6})"', lambda match: "[" * int(match[1]) + "]" * int(match[1]), json.dumps(row))


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Sequence[Answer]], list[Verdict]]]:
    """`rufus grade` without its command line; a judge behind an endpoint says yes."""
    require_isolation()
    changes = ("stages.coding_rl.reward.seconds_per_test=1", "stages.if_rl.models.judge=judge")
    settings = load_recipe("rufus_air", "cpu", changes)
    with Endpoint(in_turn([said('{"verdict": "yes", "score": 1}')])) as endpoint:
        monkeypatch.setenv("RUFUS_JUDGE_URL", endpoint.url)
        yield lambda answers: grade(answers, settings.stages, execution=settings.execution)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_spoilt_record_gets_a_verdict_or_a_fault_with_its_line(
    tmp_path: Path, graded: Callable[[Sequence[Answer]], list[Verdict]]
) -> None:
    rng, groups = random.Random(SEED), list(_originals().values())
    read = [
        _read(tmp_path / f"{number}.jsonl", _changed(rng.choice(groups[number % len(groups)]), rng))
        for number in range(COUNT)
    ]
    answers = [answer for answer in read if answer is not None and answer.problem.family in STAGE_OF_FAMILY]
    verdicts = graded(answers)
    kinds = Counter(verdict.kind for verdict in verdicts)
    assert all(verdict.score == float(verdict.passed) for verdict in verdicts)
    assert kinds.keys() == {VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.UNSCORABLE}  # nothing aborted
    assert min(kinds.values()) > COUNT / 20
    assert read.count(None) > COUNT / 20


@pytest.mark.slow
def test_the_judge_that_compares_words_survives_spoilt_rubrics(tmp_path: Path) -> None:
    require_isolation()
    rng, originals = random.Random(SEED), _originals()
    rows = [row for name in ("instructions", "rubrics") for row in originals[name] if '"judge"' not in json.dumps(row)]
    spoilt = [_changed(rng.choice(rows), rng) for _ in range(COUNT // 4)]
    known = [row for row in spoilt if '"judge"' not in json.dumps(row)]  # a question is for a model alone
    answers = [answer for row in known if (answer := _read(tmp_path / "row.jsonl", row)) is not None]
    answers = [answer for answer in answers if answer.problem.family in STAGE_OF_FAMILY]
    recipe = load_recipe("rufus_air", "cpu")
    verdicts = grade(answers, recipe.stages, execution=recipe.execution)
    assert {verdict.kind for verdict in verdicts} == {VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.UNSCORABLE}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_answer_spoils_a_sound_record(tmp_path: Path, graded: Callable[[Sequence[Answer]], list[Verdict]]) -> None:
    """Whatever the policy writes, it passes or fails: nothing that it says takes its rollout out of the group."""
    rng, groups = random.Random(SEED), list(_originals().values())
    answers = []
    for number in range(COUNT):
        row = rng.choice(groups[number % len(groups)])
        answer = _read(tmp_path / f"{number}.jsonl", row)
        assert answer is not None
        answers.append(replace(answer, response=spoil(answer.response, rng)))
    verdicts = graded(answers)
    assert all(verdict.counts and verdict.score == float(verdict.passed) for verdict in verdicts)
    assert min(Counter(verdict.kind for verdict in verdicts).values()) > COUNT / 10
