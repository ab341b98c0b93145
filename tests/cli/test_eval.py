"""`rufus eval`: any checkpoint of a store on the recipe's benchmarks. Jobs are real and run in this process; that an
orchestrator takes such a graph is tested in tests/flows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rufus_core.cli.eval import eval_
from rufus_core.cli.main import app
from rufus_core.errors import ConfigError, LineageError
from rufus_core.evaluation.collect import collect_rows
from rufus_core.evaluation.scores import Scores
from rufus_core.evaluation.statistics import pass_at_1, pass_at_k
from rufus_core.lineage.adopt import adopt
from rufus_core.lineage.store import Store
from rufus_core.ports.orchestration import RunObserver, RunOutcome, StepOutcome
from rufus_core.recipe.step import Step
from rufus_core.settings import Recipe
from tests.jobs.miniature import Runner, small_overrides, small_recipe

MEASURED = ["instructions", "reasoning"]  # benchmarks without tools: no sandbox is needed
OVERRIDES = [
    *small_overrides(),
    f"stages.sft.evaluation=!replace {{targets: [{MEASURED[0]}], guardrails: [{MEASURED[1]}]}}",
]


class InProcess:
    """An orchestrator without processes and servers. `made` are the steps that were not in the store."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def run(self, recipe: Recipe, graph: Sequence[Step], home: Path, observer: RunObserver) -> RunOutcome:
        runner = Runner(home, recipe, graph)
        outcomes = {}
        for step in graph:
            known = {record.id for record in runner.store.records()}
            observer.step_started(step.name)
            record = runner.run(step.name)
            if record.id not in known:
                self.made.append(step.name)
            outcomes[step.name] = StepOutcome("reused" if record.id in known else "completed", record.digest, record.id)
            observer.step_finished(step.name, outcomes[step.name])
        return RunOutcome(outcomes)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which SFT was run, and nothing measured."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("home")
    Runner(folder, small_recipe()).run("stages/sft/checkpoint")
    return folder


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps that were made, as they come."""
    orchestrator = InProcess()
    monkeypatch.setattr("rufus_core.cli.orchestration.load_orchestrator", lambda: orchestrator)
    monkeypatch.setattr("rufus_core.cli.orchestration.preflight", lambda *_: None)
    return orchestrator.made


def start(home: Path, checkpoint: str, *benchmarks: str, **options: Any) -> None:
    plain = {"samples": 2, "problems": 3, "profile": "cpu", "recipe": "rufus_air", "set_": OVERRIDES, "json_": False}
    eval_(checkpoint, benchmark=list(benchmarks), home=home, **{**plain, **options})


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The rows that `--json` printed: nothing else may be on stdout."""
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_a_stage_is_measured_on_its_targets_and_guardrails_PIPE_07_PIPE_08(
    home: Path, made: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    start(home, "sft", json_=True)
    assert set(made) >= {"data/if_rl", "data/reasoning_rl", "evals/sft/instructions", "evals/sft/reasoning"}
    assert not [name for name in made if name.startswith("stages/")]
    store = Store(home / "store")
    for row, name in zip(rows(capsys), MEASURED, strict=True):
        (record,) = store.records(f"evals/sft/{name}")
        scores = Scores.load(store.path(record) / f"{name}.json")
        mean = pass_at_1(scores.per_problem)
        assert (row["benchmark"], row["stage"], row["step"]) == (name, "sft", None)
        assert (row["pass_at_1"], row["stderr"]) == (mean.mean, mean.stderr)
        assert (row["k"], row["pass_at_k"]) == (2, pass_at_k(scores.per_problem, 2).mean)
        assert (row["num_problems"], row["num_samples"], row["num_lost_samples"]) == (3, 6, 0)
        assert row["digest"] == digest(home)


def digest(home: Path) -> str:
    return Store(home / "store").resolve("sft").record.digest


def test_a_repeat_measures_only_what_is_missing(
    home: Path, made: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    start(home, "sft", "instructions", problems=2, json_=True)
    first = rows(capsys)
    made.clear()
    start(home, digest(home)[:12], "reasoning", "instructions", problems=2, json_=True)
    assert made == ["evals/sft/reasoning"]
    assert rows(capsys)[1] == first[0]


def test_a_candidate_inside_a_training_is_named_by_its_step(
    home: Path, made: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    start(home, "sft@1", "instructions", json_=True)
    assert made[-1] == "evals/sft/step-1/instructions"
    (row,) = rows(capsys)
    assert (row["stage"], row["step"], row["checkpoint"]) == ("sft", 1, "stages/sft/train")
    (record,) = Store(home / "store").records("evals/sft/step-1/instructions")
    assert record.step == 1
    assert record.inputs["checkpoint"].name == "stages/sft/train"


def test_the_base_is_measured_on_what_its_child_is_compared_on(
    home: Path, made: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    start(home, "base", json_=True)
    assert [(row["stage"], row["benchmark"]) for row in rows(capsys)] == [("base", name) for name in MEASURED]
    assert "base" not in made


def test_an_adopted_checkpoint_is_measured_like_any_other(
    home: Path, made: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(home / "store")
    sft = store.resolve("sft").record
    files = {name: store.path(sft) / name for name in sft.files}
    adopted = adopt(store, "mine", home, files, lambda _: None)
    start(home, "mine", "instructions", json_=True)
    (row,) = rows(capsys)
    assert (row["stage"], row["checkpoint"], row["digest"]) == ("mine", adopted.name, adopted.digest)
    assert made[-1] == "evals/mine/instructions"
    start(home, "sft", "instructions", json_=True)
    (same,) = rows(capsys)
    assert {k: same[k] for k in ("pass_at_1", "digest")} == {k: row[k] for k in ("pass_at_1", "digest")}


def test_the_stage_table_knows_nothing_of_it(home: Path, made: list[str]) -> None:
    start(home, "sft", "instructions")
    assert all(row.metrics == {} for row in collect_rows(Store(home / "store")))


def test_the_table_shows_percent(home: Path, made: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    start(home, "sft", "instructions", problems=4, samples=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split() == ["benchmark", "pass@1", "stderr", "pass@k", "k", "problems", "samples", "lost"]
    name, mean, _, at_1, *counts = lines[-1].split()
    assert (name, mean, counts) == ("instructions", at_1, ["1", "4", "4", "0"])
    assert 0 <= float(mean) <= 100


@pytest.mark.parametrize(
    ("checkpoint", "benchmark", "said"),
    [
        ("sft", "reasonin", "did you mean 'reasoning'?"),
        ("sftt", "reasoning", "nearest: sft"),
        ("sft@7", "reasoning", "try sft@2"),
        ("stages/sft/train", "reasoning", "name one: sft@1, sft@2"),
        ("data/sft", "reasoning", "its kind is problems"),
    ],
)
def test_what_is_no_checkpoint_or_benchmark_is_refused_before_anything_runs(
    home: Path, made: list[str], checkpoint: str, benchmark: str, said: str
) -> None:
    with pytest.raises((ConfigError, LineageError)) as error:
        start(home, checkpoint, benchmark)
    assert said in str(error.value)
    assert made == []


def test_the_command_is_called_eval() -> None:
    assert "eval" in {command.name for command in app.registered_commands}
