"""`rufus problems`: build, screen and inspect. Jobs are real and run in this process; that an orchestrator takes such
graphs is tested in tests/flows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rufus_core.cli.main import app
from rufus_core.errors import ConfigError, DataError, LineageError
from rufus_core.jobs.problem_files import load_problems
from rufus_core.lineage.adopt import adopt
from rufus_core.lineage.store import Store
from rufus_core.types import Message, Problem
from tests.cli.test_eval import InProcess
from tests.data.real import real
from tests.jobs.miniature import Runner, small_overrides, small_recipe
from tests.jobs.solver import LONG_ENOUGH, solver

STAGE = "reasoning_rl"
ONE_SOURCE = f"stages.{STAGE}.problems.sources=!replace {{arithmetic: {{generator: arithmetic, count: 4}}}}"
OVERRIDES = [*small_overrides(), ONE_SOURCE, LONG_ENOUGH]
SCREENED = (
    f"stages.{STAGE}.problems.filters={{learnability: {{samplers: [policy], num_attempts: 2, high_inclusive: 0.8}}}}"
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """A home with the base policy, four problems, a policy that solves the first of them, and a reward model."""
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("home")
    runner = Runner(home, small_recipe(ONE_SOURCE, LONG_ENOUGH))
    first = load_problems(runner.path(f"data/{STAGE}"), "train")[0]
    folder = tmp_path_factory.mktemp("policy")
    solver(runner.path("base"), first).save(folder)
    files = {path.name: path for path in folder.iterdir()}
    adopt(runner.store, "mine", folder, files, lambda _: None)
    return runner


@pytest.fixture
def home(runner: Runner) -> Path:
    return runner.store.root.parent


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps that were made, as they come."""
    orchestrator = InProcess()
    monkeypatch.setattr("rufus_core.cli.orchestration.load_orchestrator", lambda: orchestrator)
    monkeypatch.setattr("rufus_core.cli.orchestration.preflight", lambda *_: None)
    return orchestrator.made


def call(home: Path, *words: str, sets: list[str] | None = None, width: int = 80) -> str:
    """What the command prints. Its errors are raised."""
    changes = [word for each in sets or () for word in ("--set", each)]
    command = ["problems", *words, "--home", str(home), *changes]
    result = CliRunner().invoke(app, command, env={"COLUMNS": str(width)}, catch_exceptions=False)
    if result.exception:
        raise result.exception
    return result.stdout


def told(home: Path, *words: str, sets: list[str] | None = None) -> Any:
    return json.loads(call(home, *words, "--json", sets=sets))


def test_build_makes_one_stage_s_problem_set_and_nothing_else(home: Path, made: list[str]) -> None:
    shown = call(home, "build", "coding_rl", sets=OVERRIDES)
    assert made == ["data/coding_rl"]
    assert "data/coding_rl" in shown
    functional = next(line for line in shown.splitlines() if "functional" in line)
    assert functional.split()[:4] == ["python_function", "python_functions", "functional", "6"]
    assert "tests for each functional problem" in shown
    assert max(map(len, shown.splitlines())) <= 80
    found = told(home, "build", "coding_rl", sets=OVERRIDES)
    assert made == ["data/coding_rl"]
    assert [(each["modality"], each["num_problems"]) for each in found["groups"]] == [
        ("functional", 6),
        ("stdin_stdout", 6),
    ]
    assert sum(each["share"] for each in found["groups"]) == pytest.approx(1)
    assert found["num_tokens"] == sum(each["num_tokens"] for each in found["groups"])


def test_build_tells_what_each_filter_dropped(made: list[str], tmp_path: Path) -> None:
    rows = [{"question": f"How many are {i}?", "answer": "1"} for i in range(9)]
    file = write(tmp_path / "mine.jsonl", [*rows, {"question": "HOW many are 3?", "answer": "2"}])
    changes = [
        *OVERRIDES,
        f"stages.{STAGE}.problems.sources=!replace {{mine: {{path: {file}}}}}",
        f"stages.{STAGE}.problems.filters={{schema: {{}}, deduplication: {{}}}}",
    ]
    shown = call(tmp_path / "home", "build", STAGE, sets=changes)
    assert "schema dropped 0" in shown
    assert "deduplication dropped 1 (mine 1)" in shown


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_policy_of_the_store_screens_without_any_training(home: Path, made: list[str]) -> None:
    (found,) = told(home, "screen", STAGE, "--policy", "mine", "--num-attempts", "3", sets=OVERRIDES)
    assert made == [f"rescreens/{STAGE}/learnability"]
    adopted = Store(home / "store").resolve("mine").record
    assert found["samplers"] == {"policy": {"name": adopted.name, "digest": adopted.digest}}
    assert (found["num_attempts"], found["window"], found["temperature"]) == (3, "0 < p <= 0.8", 1.0)
    assert sum(found["histogram"].values()) == found["counts"]["problems"] == 4
    assert sum(found["by_source"]["arithmetic"].values()) == 4
    assert set(found["histogram"]) == {"0/3", "1/3", "2/3", "3/3"}


def test_screening_with_another_policy_shows_what_moved(home: Path, made: list[str]) -> None:
    words = ("screen", STAGE, "--num-attempts", "4")
    (before,) = told(home, *words, "--policy", "base", sets=OVERRIDES)
    (after,) = told(home, *words, "--policy", "mine", "--against", before["digest"], sets=OVERRIDES)
    assert before["counts"]["too_hard"] == 4
    assert after["against"]["digest"] == before["digest"]
    first = load_problems(Store(home / "store").path(Store(home / "store").resolve(f"data/{STAGE}").record), "train")[0]
    moves = {move["id"]: move for move in after["against"]["moves"]}
    assert len(moves) == 4
    assert moves[first.id]["old_rate"] == 0
    assert moves[first.id]["new_rate"] >= 0.75
    assert (moves[first.id]["old"], moves[first.id]["new"]) == ("too_hard", after_verdict(moves[first.id]["new_rate"]))
    shown = call(home, *words, "--policy", "mine", "--against", before["digest"], sets=OVERRIDES)
    assert "kept -> out" in shown
    assert "█" in shown
    assert max(map(len, shown.splitlines())) <= 80


def after_verdict(rate: float) -> str:
    return "kept" if rate <= 0.8 else "too_easy"


def test_by_default_it_is_compared_with_the_recipe_s_own_screen(home: Path, made: list[str]) -> None:
    changes = [*OVERRIDES, SCREENED]
    (own,) = told(home, "screen", STAGE, sets=changes)
    assert own["screen"] == f"screens/{STAGE}/learnability"
    assert own["against"] is None
    (other,) = told(home, "screen", STAGE, "--policy", "mine", sets=changes)
    assert other["screen"] == f"rescreens/{STAGE}/learnability"
    assert other["against"]["record"] == own["record"]
    made.clear()
    told(home, "screen", STAGE, "--policy", "mine", sets=changes)
    assert made == []


def test_a_step_inside_a_training_screens_too(home: Path, made: list[str], runner: Runner) -> None:
    runner.run("stages/sft/train")
    (found,) = told(home, "screen", STAGE, "--policy", "sft@1", "--num-attempts", "1", sets=OVERRIDES)
    assert found["samplers"]["policy"]["step"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("screen", "reasonin_rl"), "did you mean 'reasoning_rl'?"),
        (("build", "reasonin_rl"), "did you mean 'reasoning_rl'?"),
        (("screen", "sft"), "plays no problems"),
        (("screen", STAGE, "--policy", f"data/{STAGE}"), "its kind is problems"),
        (("screen", STAGE, "--policy", "nobody"), "no checkpoint 'nobody'"),
        (("screen", STAGE, "--policy", "mine", "--against", "base"), "is no screen"),
    ],
)
def test_what_cant_be_screened_is_refused_before_anything_runs(
    home: Path, made: list[str], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises((ConfigError, LineageError)) as error:
        call(home, *words, sets=OVERRIDES)
    assert said in str(error.value)
    assert made == []


# Looking into a set


def test_a_stage_s_newest_set_is_inspected_by_family_source_and_tokens_T5(home: Path, runner: Runner) -> None:
    record = runner.run(f"data/{STAGE}")
    found = told(home, "inspect", STAGE)
    assert found["set"] == f"{record.name} {record.digest[:12]}"
    assert found["splits"] == {"train": 4, "validation": 12, "heldout": 12}
    assert found["unit"].startswith("tokens of base")
    assert found["answers"] == {"num_short": 4, "share": 1.0, "median_tokens": 1.0}
    assert told(home, "inspect", record.digest[:10]) == found
    shown = call(home, "inspect", STAGE, "--num", "2")
    assert "100.0% are answered by a short label" in shown
    assert len([line for line in shown.splitlines() if line.startswith(tuple("0123456789abcdef"))]) >= 2
    assert max(map(len, shown.splitlines())) <= 80


def test_one_problem_is_shown_whole_with_its_screens(home: Path, made: list[str], runner: Runner) -> None:
    (screen,) = told(home, "screen", STAGE, "--policy", "mine", "--num-attempts", "2", sets=OVERRIDES)
    first = load_problems(runner.path(f"data/{STAGE}"), "train")[0]
    shown = call(home, "inspect", STAGE, "--problem", first.id[:8])
    assert first.prompt[-1].content in shown
    assert first.ground_truth["answer"] in shown
    assert f"learnability {screen['digest'][:12]}" in shown
    found = told(home, "inspect", STAGE, "--problem", first.id)
    assert Problem.model_validate({k: v for k, v in found.items() if k != "screens"}) == first
    (row,) = [each for each in found["screens"] if each["screen"] == screen["record"]]
    assert row["attempts"]["policy"]["num_scored"] == 2


def test_what_a_screen_left_is_a_set_too(home: Path, made: list[str]) -> None:
    (screen,) = told(home, "screen", STAGE, "--policy", "mine", "--num-attempts", "3", sets=OVERRIDES)
    found = told(home, "inspect", screen["digest"][:12])
    assert found["num_problems"] == screen["counts"].get("kept", 0)
    assert found["report"]["samplers"] == screen["samplers"]


def test_a_file_of_the_user_s_is_inspected_without_any_store(tmp_path: Path) -> None:
    found = told(tmp_path / "nowhere", "inspect", str(real("gsm8k/test.jsonl")))
    assert found["num_problems"] == 1319
    assert found["unit"] == "words"
    assert found["answers"]["share"] == 1.0
    assert not (tmp_path / "nowhere" / "store").exists()


def test_rows_of_coding_sets_are_problems_of_coding_though_they_have_a_prompt_CRL_D3(tmp_path: Path) -> None:
    found = told(tmp_path, "inspect", str(real("humaneval/HumanEval.jsonl.gz")))
    assert [(each["family"], each["num_problems"]) for each in found["groups"]] == [("python_function", 164)]


def test_a_file_has_problems_and_no_splits(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(3)])
    assert call(tmp_path, "inspect", str(file)).startswith(f"{file}: 3 problems\n")


def test_subjects_are_counted_by_family_and_domain_RRL_D2_RRL_D3_T5(tmp_path: Path) -> None:
    puzzle = {"dataset": "sudoku", "config": {}, "entry": {"answer": "1"}}
    rows: list[Any] = [
        {"question": "Find the area of the triangle ABC", "answer": "3"},
        {"question": "Find the radius of the circle", "answer": "4"},
        {"question": "What is the remainder modulo 7", "answer": "5"},
        {"question": "Which acid forms in this reaction of the oxide", "answer": "carbonic"},
        {"family": "puzzle", "prompt": "Go on", "ground_truth": puzzle},
    ]
    file = str(write(tmp_path / "mine.jsonl", rows))
    found = told(tmp_path, "inspect", file)
    assert [(each["family"], each["domain"], each["num_problems"]) for each in found["domains"]] == [
        ("math", "geometry", 2),
        ("math", "number_theory", 1),
        ("science", "chemistry", 1),
        ("puzzles", "games", 1),
    ]
    assert [each["num_tokens"] for each in found["domains"]] == [13, 6, 9, 2]
    for name in ("share", "token_share"):
        assert sum(each[name] for each in found["domains"]) == pytest.approx(1)
    lines = [line.split() for line in call(tmp_path, "inspect", file).splitlines()]
    assert ["math", "3", "60.0", "19", "63.3"] in lines
    assert ["geometry", "2", "40.0", "13", "43.3"] in lines


def test_constraints_turns_and_rows_that_cant_be_graded_are_counted(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, *({"role": r, "content": "x"} for r in ("user", "assistant"))]
    two = [{"kind": "num_words", "count": 3}, {"kind": "commas"}]
    rows = [
        {"family": "instructions", "prompt": "Say a.", "ground_truth": {"rubrics": two}},
        {"family": "instructions", "prompt": "Say b.", "ground_truth": {"rubrics": two[:1]}},
        {
            "family": "instructions",
            "prompt": [*turns, {"role": "user", "content": "Go on."}],
            "ground_truth": {"rubrics": two},
        },
        {"family": "python_function", "prompt": "f", "ground_truth": {"modality": "functional", "tests": []}},
    ]
    found = told(tmp_path, "inspect", str(write(tmp_path / "mine.jsonl", rows)))
    assert found["rubrics"]["by_count"] == {"1": 1, "2": 2}
    assert found["rubrics"]["by_kind"] == {"num_words": 3, "commas": 2}
    assert found["turns"] == {"num_problems": 1, "mean_turns": 2.0, "num_with_system": 1}
    assert found["faults"] == {"tests: Tuple should have at least 1 item after validation, not 0": 1}


def test_preference_pairs_are_scored_by_a_reward_model_T13_RM_D3(home: Path, runner: Runner, tmp_path: Path) -> None:
    runner.run("stages/rlhf/reward_model")
    long = "This is a good and helpful answer about it"
    rows = [{"prompt": f"Tell me of {i}", "chosen": f"{long} {i}", "rejected": f"{long} no {i}"} for i in range(3)]
    rows.append({"prompt": "Tell me", "chosen": "", "rejected": long})
    file = str(write(tmp_path / "pairs.jsonl", rows))
    found = told(home, "inspect", file, "--reward-model", "stages/rlhf/reward_model")
    assert found["num_pairs"] == 4
    assert (found["pairs"]["num_candidates"], found["pairs"]["num_valid"]) == (4, 3)
    assert found["pairs"]["dropped"] == {"empty": 1}
    assert found["pairs"]["margin"] == pytest.approx(found["pairs"]["chosen"] - found["pairs"]["rejected"])
    shown = call(home, "inspect", file, "--reward-model", "stages/rlhf/reward_model")
    assert "not valid: 1 empty" in shown
    assert "compare them within a row, and rank no set by them (RM-D3)" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((STAGE, "--problem", "zzzz"), "no problems have an id"),
        ((STAGE, "--problem", ""), "problems have an id"),
        ((STAGE, "--source", "books"), "of arithmetic"),
        (("mine",), "is no problem set"),
        ((STAGE, "--reward-model", "base"), "is no reward model"),
        (("no_such_file.jsonl",), "there is no such file"),
        (("x" * 5000 + ".jsonl",), "there is no such file"),
        (("x" * 5000,), "no checkpoint"),
        (("no_such_set",), "no checkpoint 'no_such_set'"),
    ],
)
def test_what_there_is_not_is_told_in_one_line(home: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises((DataError, LineageError)) as error:
        call(home, "inspect", *words)
    assert said in str(error.value)


def test_a_problem_s_text_can_t_steer_the_terminal(tmp_path: Path) -> None:
    evil = Problem.build(
        "arithmetic", "x", [Message(role="user", content="\x1b[2Jclear [bold]me[/bold]")], {"answer": "1"}
    )
    file = tmp_path / "evil.jsonl"
    file.write_text(evil.model_dump_json() + "\n")
    for words in ((str(file), "--num", "1"), (str(file), "--problem", evil.id[:4])):
        shown = call(tmp_path, "inspect", *words)
        assert "\x1b" not in shown
        assert "[bold]me[/bold]" in shown
