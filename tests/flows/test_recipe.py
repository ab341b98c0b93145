"""Whole runs: Prefect's own server, jobs in real processes, records in a real store, MLflow read back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from mlflow import MlflowClient

from flows.orchestrator import PrefectOrchestrator
from rufus_core.ports import RunOutcome, StepOutcome, StepProgress
from rufus_core.recipe.graph import Step
from rufus_core.settings import BaseModelSettings, Recipe
from tasks import servers

RECIPE = Recipe(name="tiny", profile="test", base=BaseModelSettings(name="base"), stages={})
COMMAND = (sys.executable, str(Path(__file__).with_name("fake_job.py")))


class Recorder:
    """An observer that remembers."""

    def __init__(self, on_progress: Callable[[str], None] | None = None) -> None:
        self.started: list[str] = []
        self.progress: dict[str, list[StepProgress]] = {}
        self.finished: dict[str, StepOutcome] = {}
        self.warnings: list[str] = []
        self._on_progress = on_progress

    def step_started(self, step: str) -> None:
        self.started.append(step)

    def step_progressed(self, step: str, progress: StepProgress) -> None:
        self.progress.setdefault(step, []).append(progress)
        if self._on_progress:
            self._on_progress(step)

    def step_finished(self, step: str, outcome: StepOutcome) -> None:
        self.finished[step] = outcome

    def warned(self, message: str) -> None:
        self.warnings.append(message)


def graph(**config: Any) -> list[Step]:
    """base -> data -> training; `config` is that of the training."""
    return [
        Step("base", "base", "base policy", {"text": "b"}),
        Step("data/math", "problems", "Math: data", {"text": "d"}, stage="math", inputs={"base": "base"}),
        Step(
            "stages/math/train",
            "checkpoint",
            "Math: train",
            config or {"text": "t"},
            stage="math",
            inputs={"parent": "base", "problems": "data/math"},
        ),
    ]


def run(home: Path, steps: list[Step], observer: Recorder | None = None) -> tuple[RunOutcome, Recorder]:
    observer = observer or Recorder()
    return PrefectOrchestrator(COMMAND).run(RECIPE, steps, home, observer), observer


def statuses(outcome: RunOutcome) -> dict[str, str]:
    return {name: step.status for name, step in outcome.steps.items()}


def jobs_started(home: Path) -> list[str]:
    return (home / "started.txt").read_text().split()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def test_runs_reuse_fail_resume_and_show_it_all(home: Path) -> None:
    """One home, several runs: each starts a server, so they share a test."""
    first, seen = run(home, graph())
    assert statuses(first) == dict.fromkeys(("base", "data/math", "stages/math/train"), "completed")
    assert seen.started == ["base", "data/math", "stages/math/train"]
    assert [p.metrics["reward"] for p in seen.progress["base"]] == [0.25, 0.5]
    assert [(p.step, p.total) for p in seen.progress["base"]] == [(1, 2), (2, 2)]
    assert seen.warnings == []

    again, seen = run(home, graph())
    assert set(statuses(again).values()) == {"reused"}
    assert {n: o.digest for n, o in again.steps.items()} == {n: o.digest for n, o in first.steps.items()}
    assert seen.started == []
    assert len(jobs_started(home)) == 3

    failed, seen = run(home, graph(fail="no such row"))
    assert statuses(failed) == {"base": "reused", "data/math": "reused", "stages/math/train": "failed"}
    assert failed.steps["stages/math/train"].error == "my.jsonl:3: no such row (mend it)"

    crashed, seen = run(home, graph(crash="a bug"))
    step = crashed.steps["stages/math/train"]
    assert step.error.endswith("ZeroDivisionError: a bug")
    assert step.log is not None
    assert "Traceback" in step.log.read_text()

    changed = [graph()[0], replace(graph()[1], config={"text": "d", "spelling": "other, same bytes"}), graph()[2]]
    cut, seen = run(home, changed)
    assert statuses(cut) == {"base": "reused", "data/math": "completed", "stages/math/train": "reused"}

    with servers.prefect_server(home, servers.free_port()) as server:
        server.ready()
        flow_runs = httpx.post(f"{server.url}/api/flow_runs/filter", json={"sort": "START_TIME_ASC"}).json()
        task_runs = httpx.post(f"{server.url}/api/task_runs/filter", json={}).json()
    assert [r["state_name"] for r in flow_runs] == ["Completed", "Reused", "Failed", "Failed", "Completed"]
    assert {r["name"] for r in flow_runs} == {"tiny on test"}
    by_run: dict[str, dict[str, str]] = {r["id"]: {} for r in flow_runs}
    for task in task_runs:
        by_run[task["flow_run_id"]][task["name"]] = task["state_name"]
    titles = ("base policy", "Math: data", "Math: train")
    assert list(by_run.values())[:3] == [
        dict.fromkeys(titles, "Completed"),
        dict.fromkeys(titles, "Reused"),
        {"base policy": "Reused", "Math: data": "Reused", "Math: train": "Failed"},
    ]
    assert {tag for task in task_runs for tag in task["tags"]} == {"base", "problems", "checkpoint", "math"}

    uri = f"sqlite:///{home}/mlflow/mlflow.db"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    tracked = client.search_runs([experiment.experiment_id])
    assert len([r for r in tracked if r.info.run_name == "tiny on test"]) == 5
    assert sorted(r.info.status for r in tracked if r.info.run_name == "Math: train") == [
        "FAILED",
        "FAILED",
        "FINISHED",
    ]
    assert {r.info.status for r in tracked} == {"FINISHED", "FAILED"}
