"""The MLflow adapter, read back through MLflow's own client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from rufus_core.lineage import Record
from tasks.tracking import Tracker, flatten
from tests.tasks.tracked import client_of, made_and_tracked, refuse


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def records(home: Path) -> dict[str, Record]:
    """A tracked run, which ends with the aliases of its checkpoint."""
    tracker = Tracker(home, "tiny", refuse)
    records = made_and_tracked(home, tracker)
    for alias in ("math", "tiny"):
        tracker.aliased(alias, records["stages/math/checkpoint"], "tiny")
    tracker.run_finished("FINISHED", {"rufus.reused": "0"})
    return records


@pytest.fixture(scope="module")
def client(home: Path, records: dict[str, Record]) -> MlflowClient:
    return client_of(home)


@pytest.fixture(scope="module")
def runs(client: MlflowClient) -> dict[str, Run]:
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])  # these come without their edges
    return {run.info.run_name.removesuffix(" by its title"): client.get_run(run.info.run_id) for run in found}


def test_one_run_with_a_child_for_each_job(runs: dict[str, Run], records: dict[str, Record]) -> None:
    parent = runs["tiny on cpu"]
    assert set(runs) == {"tiny on cpu", *records}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {runs[name].data.tags["mlflow.parentRunId"] for name in records} == {parent.info.run_id}
    assert {name: runs[name].data.tags["rufus.record"] for name in records} == {n: r.id for n, r in records.items()}
    assert parent.data.params == {"seed": "7"}


def test_all_is_sent_when_the_run_ends(home: Path, client: MlflowClient) -> None:
    assert list((home / "mlflow" / "unsent").iterdir()) == []


def test_parameters_are_flat_and_never_cut_in_silence(runs: dict[str, Run]) -> None:
    params = runs["stages/math/train"].data.params
    assert params["algorithm.name"] == "gspo"
    assert params["algorithm.clip_at_low"] == "0.002"
    assert params["long"] == "(9000 characters, see the record)"


def test_each_training_step_is_in_the_curves_once(client: MlflowClient, runs: dict[str, Run]) -> None:
    run = runs["stages/math/train"].info.run_id
    for name, values in {"loss": [2.0, 1.0, 0.5], "reward": [0.1, 0.2, 0.3]}.items():
        points = client.get_metric_history(run, name)
        assert sorted((point.step, point.value) for point in points) == list(enumerate(values, 1))


def test_a_training_step_that_a_resumed_job_repeats_counts_once(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path, "tiny", refuse)
    tracker.run_started("run", {})
    tracker.step_started("a", "A", {})
    for number, reward in [(1, 0.1), (2, 0.2), (2, 0.2), (3, 0.3)]:
        tracker.progressed("a", number, {"reward": reward})
    tracker.step_finished("a", "FAILED")
    tracker.run_finished("FAILED", {})
    client = client_of(tmp_path)
    (run,) = client.search_runs(["1"], "tags.`rufus.step` = 'a'")
    points = client.get_metric_history(run.info.run_id, "reward")
    assert [(point.step, point.value) for point in points] == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_a_checkpoint_is_a_logged_model_of_its_training(
    client: MlflowClient, runs: dict[str, Run], records: dict[str, Record]
) -> None:
    training, base = runs["stages/math/train"], records["base"]
    (output,) = training.outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    assert model.source_run_id == training.info.run_id
    assert model.tags["rufus.digest"] == records["stages/math/checkpoint"].digest
    assert model.tags["rufus.parents"] == base.digest
    assert model.params["decision.rule"] == "peak"
    assert {metric.key: metric.value for metric in model.metrics or ()}["best_at_1"] == 0.3
    (parent,) = training.inputs.model_inputs
    assert client.get_logged_model(parent.model_id).tags["rufus.name"] == "base"
    (data,) = training.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("data/math", records["data/math"].digest[:36])
    assert json.loads(data.dataset.source)["digest"] == records["data/math"].digest
    assert [one.model_id for one in runs["stages/math/checkpoint"].outputs.model_outputs] == [output.model_id]


def test_its_page_names_what_it_was_made_from(client: MlflowClient, records: dict[str, Record]) -> None:
    digest = records["stages/math/checkpoint"].digest
    (model,) = client.search_logged_models(["1"], f"tags.`rufus.digest` = '{digest}'")
    (base,) = client.search_logged_models(["1"], f"tags.`rufus.digest` = '{records['base'].digest}'")
    told = model.tags["mlflow.note.content"]
    assert f"parent: [base](#/experiments/1/models/{base.model_id}) | `{records['base'].digest}`" in told
    assert f"data: data/math | `{records['data/math'].digest}`" in told


def test_each_score_belongs_to_the_checkpoint_and_to_its_own_problems(
    client: MlflowClient, runs: dict[str, Run], records: dict[str, Record]
) -> None:
    (used,) = runs["scores/math"].inputs.model_inputs
    model = client.get_logged_model(used.model_id)
    assert model.tags["rufus.digest"] == records["stages/math/checkpoint"].digest
    scored = {m.key: (m.value, m.dataset_name) for m in model.metrics or ()}
    assert scored["sums"] == (0.75, "data/math")
    assert scored["coding"] == (0.25, "data/code")
    assert "sums" not in runs["stages/math/train"].data.metrics


def test_aliases_point_at_a_version_without_weights(client: MlflowClient, records: dict[str, Record]) -> None:
    checkpoint = records["stages/math/checkpoint"]
    (version,) = client.search_model_versions("name = 'tiny'")
    assert client.get_registered_model("tiny").aliases == {"math": version.version, "tiny": version.version}
    assert version.source == f"rufus:///{checkpoint.id}"
    assert version.tags["rufus.digest"] == checkpoint.digest
    (model,) = client.search_logged_models(["1"], f"tags.`rufus.digest` = '{checkpoint.digest}'")
    assert json.loads(model.tags["mlflow.modelVersions"]) == [{"name": "tiny", "version": 1}]


def test_flatten() -> None:
    assert flatten({"a": {"b": 1, "c": None}, "d": [1, 2], "e": "text"}) == {"a.b": "1", "d": "[1, 2]", "e": "text"}
