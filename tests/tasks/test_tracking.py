"""The MLflow adapter, read back through MLflow's own client."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from rufus_core.lineage.record import Candidate, Decision, Input, Record
from tasks.processes import ProcessId
from tasks.tracking import Tracker, flatten

BASE = Input(name="base", digest="b" * 64, record_id="base/" + "b" * 16)
DATA = Input(name="stages/math/problems", digest="d" * 64, record_id="stages/math/problems/" + "d" * 16)
KINDS = {"policy": "base", "problems": "problems"}


def record(name: str, kind: str, digest: str, **fields: object) -> Record:
    return Record.model_validate(
        {
            "name": name,
            "kind": kind,
            "version": "1",
            "fingerprint": digest,
            "digest": digest,
            "files": {},
            "published": datetime(2026, 1, 1, tzinfo=UTC),
            "inputs": {"policy": BASE, "problems": DATA},
            **fields,
        }
    )


def refuse(message: str) -> None:
    raise AssertionError(message)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> MlflowClient:
    """A tracked run: one training job that repeats steps after a resume, one evaluation of its checkpoint."""
    home = tmp_path_factory.mktemp("home")
    tracker = Tracker(home, "tiny", refuse)
    tracker.run_started("tiny on cpu", {"seed": 7})
    tracker.step_started(
        "stages/math/train", "Math RL", {"algorithm": {"name": "gspo", "clip_low": 0.002}, "long": "x" * 9000}
    )
    for number, reward in [(1, 0.1), (2, 0.2), (2, 0.2), (3, 0.3)]:
        tracker.progressed("stages/math/train", number, {"reward": reward, "pass@1": reward})
    decision = Decision(rule="peak", chosen_step=3, candidates=(Candidate(step=3, value=0.3),))
    child = record("stages/math/checkpoint", "checkpoint", "c" * 64, step=3, decision=decision, metrics={"best": 0.3})
    tracker.published("stages/math/train", child, KINDS)
    tracker.step_finished("stages/math/train", "FINISHED")

    tracker.step_started("stages/math/scores", "Scores", {})
    inputs = {"policy": child.as_input(), "problems": DATA}
    scores = record("stages/math/scores", "scores", "e" * 64, inputs=inputs, metrics={"math/pass@1": 0.75})
    tracker.published("stages/math/scores", scores, {**KINDS, "policy": "checkpoint"})
    tracker.step_finished("stages/math/scores", "FINISHED")
    tracker.run_finished("FINISHED", {"rufus.reused": "0"})
    uri = f"sqlite:///{home}/mlflow/mlflow.db"
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def runs(client: MlflowClient) -> dict[str, Run]:
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])  # these come without their edges
    return {run.info.run_name: client.get_run(run.info.run_id) for run in found}


def test_one_run_with_a_child_for_each_job(client: MlflowClient) -> None:
    found = runs(client)
    parent = found["tiny on cpu"]
    assert set(found) == {"tiny on cpu", "Math RL", "Scores"}
    assert {run.info.status for run in found.values()} == {"FINISHED"}
    assert found["Math RL"].data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.data.params == {"seed": "7"}


def test_parameters_are_flat_and_never_cut_in_silence(client: MlflowClient) -> None:
    params = runs(client)["Math RL"].data.params
    assert params["algorithm.name"] == "gspo"
    assert params["algorithm.clip_low"] == "0.002"
    assert params["long"] == "(9000 characters, see the record)"


def test_a_repeated_training_step_is_logged_once_and_names_are_legal(client: MlflowClient) -> None:
    run = runs(client)["Math RL"].info.run_id
    assert [(m.step, m.value) for m in client.get_metric_history(run, "reward")] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert len(client.get_metric_history(run, "pass_at_1")) == 3


def test_a_checkpoint_is_a_logged_model_with_its_edges(client: MlflowClient) -> None:
    run = runs(client)["Math RL"]
    (output,) = run.outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    assert model.source_run_id == run.info.run_id
    assert model.tags["rufus.digest"] == "c" * 64
    assert model.tags["rufus.parents"] == "b" * 64
    assert model.params["decision.rule"] == "peak"
    (parent,) = run.inputs.model_inputs
    assert client.get_logged_model(parent.model_id).tags["rufus.name"] == "base"
    (data,) = run.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("stages/math/problems", "d" * 36)
    assert json.loads(data.dataset.source)["digest"] == "d" * 64


def test_scores_belong_to_the_checkpoint_and_are_logged_in_the_evaluation_run(client: MlflowClient) -> None:
    found = runs(client)
    (used,) = found["Scores"].inputs.model_inputs
    model = client.get_logged_model(used.model_id)
    assert model.tags["rufus.digest"] == "c" * 64
    scored = {m.key: m for m in model.metrics or ()}
    assert scored["math/pass_at_1"].value == 0.75
    assert scored["math/pass_at_1"].dataset_name == "stages/math/problems"
    assert "math/pass_at_1" not in found["Math RL"].data.metrics


def test_an_outage_warns_once_and_keeps_every_entry(tmp_path: Path) -> None:
    (tmp_path / "mlflow" / "mlflow.db").mkdir(parents=True)  # no database can be opened here
    warnings: list[str] = []
    tracker = Tracker(tmp_path, "tiny", warnings.append)
    tracker.run_started("run", {})
    tracker.step_started("a", "A", {"x": 1})
    tracker.progressed("a", 1, {"loss": 2.0})
    tracker.step_finished("a", "FINISHED")
    tracker.run_finished("FINISHED", {})
    assert len(warnings) == 1
    assert "unsent.jsonl" in warnings[0]
    lines = [json.loads(line) for line in (tmp_path / "mlflow" / "unsent.jsonl").read_text().splitlines()]
    assert [line["entry"] for line in lines] == ["start_run", "start_run", "log_metrics", "end_run", "end_run"]
    assert lines[2]["rows"][0][:3] == ["loss", 2.0, 1]


def test_runs_of_a_dead_process_do_not_stay_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tasks.tracking._owner", lambda: str(ProcessId(2**22 + 1, 1.0)))
        Tracker(tmp_path, "tiny", refuse).run_started("killed", {})
    Tracker(tmp_path, "tiny", refuse).run_started("next", {})
    uri = f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    found = runs(MlflowClient(tracking_uri=uri, registry_uri=uri))
    assert {name: run.info.status for name, run in found.items()} == {"killed": "KILLED", "next": "RUNNING"}


def test_flatten() -> None:
    assert flatten({"a": {"b": 1, "c": None}, "d": [1, 2], "e": "text"}) == {"a.b": "1", "d": "[1, 2]", "e": "text"}
