"""Whole runs: Prefect's own server, jobs in real processes, records in a real store, MLflow read back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from mlflow import MlflowClient
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.orchestrator import PrefectOrchestrator
from flows.verification import known_digests, verify_prefect
from rufus_core.lineage import Record, Store, store_root
from rufus_core.ports.orchestration import RunOutcome, StepOutcome
from rufus_core.ports.progress import StepProgress
from rufus_core.recipe.step import Step
from rufus_core.settings import BaseModelSettings, ExecutionSettings, Recipe
from tasks import servers

AT_ONCE = ExecutionSettings(retry_seconds=0.0)
RECIPE = Recipe(name="tiny", profile="test", base=BaseModelSettings(name="base"), stages={}, execution=AT_ONCE)
ROOT = Path(__file__).parents[2]
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


NAMES = ("base", "data/math", "stages/math/train")
TITLES = ("base policy", "Math: data", "Math: train")


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


@pytest.fixture(scope="module")
def first(home: Path) -> tuple[RunOutcome, Recorder]:
    """A run with a server of its own."""
    return run(home, graph())


@pytest.fixture
def api(home: Path, first: object, server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of one server over the same home, which the runs of a test then use."""
    monkeypatch.setenv("PREFECT_API_URL", f"{server}/api")
    return f"{server}/api"


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[str]:
    with servers.prefect_server(home, servers.free_port()) as running:
        running.ready()
        yield running.url


def shown(api: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The newest flow run as Prefect shows it, and the states of its tasks by name."""
    query = {"sort": "START_TIME_DESC", "limit": 1}
    (flow_run,) = httpx.post(f"{api}/flow_runs/filter", json=query).json()
    tasks = httpx.post(f"{api}/task_runs/filter", json={"flow_runs": {"id": {"any_": [flow_run["id"]]}}}).json()
    return flow_run, {task["name"]: task["state_name"] for task in tasks}


def test_a_first_run_makes_every_artifact_in_order(home: Path, first: tuple[RunOutcome, Recorder], api: str) -> None:
    outcome, seen = first
    assert statuses(outcome) == dict.fromkeys(NAMES, "completed")
    assert seen.started == jobs_started(home) == list(NAMES)
    assert [(p.step, p.total, p.metrics) for p in seen.progress["base"]] == [
        (1, 2, {"reward": 0.25}),
        (2, 2, {"reward": 0.5}),
    ]
    assert seen.warnings == []
    flow_run, tasks = shown(api)
    assert (flow_run["name"], flow_run["state_name"]) == ("tiny on test", "Completed")
    assert tasks == dict.fromkeys(TITLES, "Completed")


def test_a_run_inside_an_event_loop_is_recorded_too(tmp_path: Path) -> None:
    """As in a notebook, where Prefect only promises to send what it still has."""

    async def cell() -> tuple[RunOutcome, Recorder]:
        return run(tmp_path, graph())

    outcome, seen = asyncio.run(cell())
    assert set(statuses(outcome).values()) == {"completed"}
    assert seen.warnings == []
    with servers.prefect_server(tmp_path, servers.free_port()) as again:
        again.ready()
        flow_run, tasks = shown(f"{again.url}/api")
    assert flow_run["state_name"] == "Completed"
    assert tasks == dict.fromkeys(TITLES, "Completed")


def test_a_run_is_recorded_by_its_own_server_in_a_process_that_told_another_before(tmp_path: Path) -> None:
    with servers.prefect_server(tmp_path / "other", servers.free_port()) as other:
        other.ready()
        with temporary_settings({PREFECT_API_URL: f"{other.url}/api"}):
            emit_event("told", resource={"prefect.resource.id": "the other server"})
            EventsWorker.instance().wait_until_empty()
    _, seen = run(tmp_path, graph())
    assert seen.warnings == []
    with servers.prefect_server(tmp_path, servers.free_port()) as again:
        again.ready()
        _, tasks = shown(f"{again.url}/api")
    assert tasks == dict.fromkeys(TITLES, "Completed")


def test_an_intact_run_is_reused_without_a_job(home: Path, first: tuple[RunOutcome, Recorder], api: str) -> None:
    before = jobs_started(home)
    outcome, seen = run(home, graph())
    assert set(statuses(outcome).values()) == {"reused"}
    assert [o.digest for o in outcome.steps.values()] == [o.digest for o in first[0].steps.values()]
    assert seen.started == []
    assert jobs_started(home) == before
    flow_run, tasks = shown(api)
    assert (flow_run["state_type"], flow_run["state_name"]) == ("COMPLETED", "Reused")
    assert tasks == dict.fromkeys(TITLES, "Reused")


def test_a_damaged_artifact_is_made_again(home: Path, api: str) -> None:
    (file,) = (home / "store" / "artifacts" / "data.math").glob("*/text")
    file.write_text("damaged")
    outcome, _ = run(home, graph())
    assert statuses(outcome) == dict(zip(NAMES, ("reused", "completed", "reused"), strict=True))
    assert file.read_text() == "bd"


def test_a_changed_step_that_gives_the_same_bytes_leaves_what_follows_valid(home: Path, api: str) -> None:
    base, data, training = graph()
    outcome, _ = run(home, [base, replace(data, config={"text": "d", "spelling": "other"}), training])
    assert statuses(outcome) == dict(zip(NAMES, ("reused", "completed", "reused"), strict=True))


def published(home: Path, step: StepOutcome) -> Record | None:
    return Store(home / "store").get(step.record_id or "")


@pytest.mark.parametrize("same", [True, False])
def test_a_forced_step_is_made_anew_and_replaced_if_it_comes_out_different(
    home: Path, api: str, tmp_path: Path, same: bool
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1")
    *above, training = graph(text="t", also=str(secret))
    before = published(home, run(home, [*above, training])[0].steps[training.name])
    assert before is not None
    secret.write_text("1" if same else "2")
    outcome, seen = run(home, [*above, replace(training, force=True)])
    step = outcome.steps[training.name]
    assert (step.status, seen.started) == ("completed", [training.name])
    replaced = [file.read_text() for file in (home / "store" / "replaced").glob("*/text")]
    if same:
        assert step.note == "the same bytes as before: its record stays"
        assert published(home, step) == before
    else:
        assert step.note == f"other bytes than before: {before.digest[:12]} moved to replaced/"
        assert (Store(home / "store").path(before) / "text").read_text() == "bbdt2"
        assert "bbdt1" in replaced
    assert statuses(run(home, [*above, training])[0])[training.name] == "reused"


def test_a_forced_step_that_fails_leaves_what_was_there(home: Path, api: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1")
    *above, training = graph(text="t", also=str(secret))
    before = run(home, [*above, training])[0].steps[training.name]
    secret.unlink()
    outcome, _ = run(home, [*above, replace(training, force=True)])
    assert outcome.steps[training.name].status == "failed"
    assert "FileNotFoundError" in outcome.steps[training.name].error
    after = run(home, [*above, training])[0].steps[training.name]
    assert (after.status, after.digest, after.record_id) == ("reused", before.digest, before.record_id)


def test_a_job_that_fails_is_told_in_its_own_words(home: Path, api: str) -> None:
    outcome, _ = run(home, graph(fail="no such row"))
    assert statuses(outcome) == dict(zip(NAMES, ("reused", "reused", "failed"), strict=True))
    assert outcome.steps[NAMES[2]].error == "my.jsonl:3: no such row (mend it)"
    flow_run, tasks = shown(api)
    assert flow_run["state_name"] == "Failed"
    assert flow_run["state"]["message"].endswith("has no deployment: the same rufus command goes on")
    assert tasks["Math: train"] == "Failed"


def test_a_job_that_is_killed_is_tried_again_and_one_that_fails_is_not(home: Path, api: str) -> None:
    deaths = home / "deaths"
    deaths.write_text("one\ntwo\n")
    before = len(jobs_started(home))
    outcome, seen = run(home, graph(die=str(deaths), text="third time"))
    assert statuses(outcome)[NAMES[2]] == "completed"
    assert jobs_started(home)[before:] == [NAMES[2]] * 3
    assert seen.started == [NAMES[2]]
    assert [text for text in seen.warnings if "SIGKILL" in text and "; try " in text] == seen.warnings[:2]

    before = len(jobs_started(home))
    run(home, graph(fail="no such row, ever"))
    assert jobs_started(home)[before:] == [NAMES[2]]


def test_tries_are_bounded_and_a_later_run_knows_how_many_there_were(home: Path, api: str) -> None:
    deaths = home / "many_deaths"
    deaths.write_text("again\n" * 9)
    for tries in (3, 1):
        before = len(jobs_started(home))
        outcome, _ = run(home, graph(die=str(deaths), text="never"))
        assert statuses(outcome)[NAMES[2]] == "failed"
        assert jobs_started(home)[before:] == [NAMES[2]] * tries


def test_a_record_links_to_the_runs_that_show_it(home: Path, api: str) -> None:
    outcome, _ = run(home, graph(text="linked"))
    record = Store(home / "store").get(outcome.steps[NAMES[2]].record_id or "")
    assert record is not None
    flow_run, _ = shown(api)
    assert record.links["prefect.flow_run"] == flow_run["id"]
    task = httpx.get(f"{api}/task_runs/{record.links['prefect.task_run']}").json()
    assert (task["flow_run_id"], task["name"]) == (flow_run["id"], "Math: train")
    client = MlflowClient(tracking_uri=f"sqlite:///{home}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    wanted = f"tags.`rufus.key` = '{record.links['mlflow.key']}'"
    (run_,) = client.search_runs([experiment.experiment_id], wanted)
    assert run_.info.run_name == "Math: train"


def test_a_run_shows_where_its_checkpoints_come_from_and_one_that_makes_nothing_shows_nothing(
    home: Path, api: str
) -> None:
    outcome, _ = run(home, graph(text="shown"))
    pages = artifacts(api)
    assert set(pages) == {"rufus-lineage", "rufus-stages", "rufus-store", "rufus-mlflow"}
    digest = outcome.steps[NAMES[2]].digest or ""
    page = pages["rufus-lineage"]
    assert f"- digest: `{digest}`" in page
    assert f"- parent: `{outcome.steps['base'].record_id}`" in page
    assert f"rufus trace {digest[:12]}" in page
    assert digest[:12] in pages["rufus-stages"]
    assert (home / "store").as_uri() in pages["rufus-store"]
    run(home, graph(text="shown"))
    assert artifacts(api) == {}


def artifacts(api: str) -> dict[str, str]:
    """Those of the newest flow run by key."""
    flow_run, _ = shown(api)
    query = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}}
    return {each["key"]: each["data"] for each in httpx.post(f"{api}/artifacts/filter", json=query).json()}


def test_a_job_that_crashes_names_its_log_and_is_never_taken_for_done(home: Path, api: str) -> None:
    for _ in range(2):
        outcome, seen = run(home, graph(crash="a bug"))
        step = outcome.steps[NAMES[2]]
        assert seen.started == [NAMES[2]]
        assert step.error.endswith("ZeroDivisionError: a bug")
        assert step.log is not None
        assert "Traceback" in step.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_job_publishes_nothing_and_keeps_what_was_done(
    home: Path, api: str, number: signal.Signals
) -> None:
    def interrupt(step: str) -> None:
        os.kill(os.getpid(), number)

    outcome, _ = run(home, graph(hang=number.name, text="never"), Recorder(interrupt))
    assert outcome.interrupted
    assert statuses(outcome) == dict(zip(NAMES, ("reused", "reused", "cancelled"), strict=True))
    (folder,) = (each.parent for each in (home / "jobs").glob("*/document.json") if number.name in each.read_text())
    assert not psutil.pid_exists(json.loads((folder / "handle.json").read_text())["pid"])
    flow_run, tasks = shown(api)
    assert flow_run["state_name"] == "Cancelled"
    assert tasks["Math: train"] == "Cancelled"


def test_after_kill_9_the_next_run_joins_the_living_job_and_starts_no_second_one(home: Path, api: str) -> None:
    go = home / "go"
    config = {"wait_for": str(go), "text": "joined"}
    code = (
        "import sys; from pathlib import Path; from tests.flows.test_recipe import Recorder, graph, run\n"
        "tell = Recorder(lambda step: print(step, flush=True))\n"
        "run(Path(sys.argv[1]), graph(wait_for=sys.argv[2], text='joined'), tell)"
    )
    command = [sys.executable, "-c", code, str(home), str(go)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == f"{NAMES[2]}\n"
        first.kill()
    killed, _ = shown(api)
    with temporary_settings({PREFECT_API_URL: api}):
        told = map(str, verify_prefect(known_digests(Store(store_root(home)))))
    assert f"Prefect flow run {killed['name']}: is Running, and its process is dead (rufus run)" in told
    before = jobs_started(home)
    outcome, seen = run(home, graph(**config), Recorder(lambda step: go.touch()))
    assert statuses(outcome) == dict(zip(NAMES, ("reused", "reused", "completed"), strict=True))
    assert [p.step for p in seen.progress[NAMES[2]]] == [1, 2]
    assert shown(api)[1]["Math: train"] == "Joined"
    assert jobs_started(home) == before
    assert httpx.get(f"{api}/flow_runs/{killed['id']}").json()["state_name"] == "Crashed"


def test_mlflow_has_a_run_for_each_run_and_a_child_for_each_job(home: Path, api: str) -> None:
    uri = f"sqlite:///{home}/mlflow/mlflow.db"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    before = client.search_runs([experiment.experiment_id])
    assert {r.info.status for r in before} <= {"FINISHED", "FAILED", "KILLED"}
    run(home, graph(text="new"))
    known = {r.info.run_id for r in before}
    new = [r for r in client.search_runs([experiment.experiment_id]) if r.info.run_id not in known]
    parent, child = sorted(new, key=lambda r: "mlflow.parentRunId" in r.data.tags)
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (child.info.run_name, child.data.metrics["reward"], child.data.params["text"]) == ("Math: train", 0.5, "new")
    assert (parent.data.tags["rufus.reused"], parent.data.tags["rufus.completed"]) == ("2", "1")
