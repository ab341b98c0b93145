"""A small store that is made and tracked as a run does it, and what MLflow shows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from rufus_core.lineage import Candidate, Decision, Draft, Input, Record, Store, fingerprint
from tasks.tracking import Tracker

CURVE = [{"loss": 2.0, "reward": 0.1}, {"loss": 1.0, "reward": 0.2}, {"loss": 0.5, "reward": 0.3}]


def refuse(message: str) -> None:
    raise AssertionError(message)


def make(
    home: Path, name: str, kind: str, files: Mapping[str, str], inputs: Mapping[str, Input] | None = None, **said: Any
) -> Record:
    """Publish an artifact with these files."""
    store = Store(home / "store")
    inputs = dict(inputs or {})
    config = said.pop("config", {"size": 1})
    key = fingerprint(kind, "1", config, {role: one.digest for role, one in inputs.items()})
    attempt = store.attempt(name, key)
    for file, content in files.items():
        (attempt.folder / file).write_text(content)
    return store.publish(attempt, Draft(kind=kind, version="1", config=config, inputs=inputs, seed=7, **said))


def curve_text() -> str:
    lines = ({"step": number, "total": 3, "metrics": metrics} for number, metrics in enumerate(CURVE, 1))
    return "".join(json.dumps(line) + "\n" for line in lines)


def made_and_tracked(home: Path, tracker: Tracker) -> dict[str, Record]:
    """A base, its data, a training, the checkpoint that was chosen, and its scores on two benchmarks."""
    records: dict[str, Record] = {}

    def step(name: str, kind: str, files: Mapping[str, str], *curve: Mapping[str, float], **said: Any) -> Record:
        key = tracker.step_started(name, f"{name} by its title", {**said.get("config", {"size": 1}), "seed": 7})
        for number, metrics in enumerate(curve, 1):
            tracker.progressed(name, number, metrics)
        records[name] = record = make(home, name, kind, files, links={"mlflow.key": key}, **said)
        tracker.published(name, record)
        tracker.step_finished(name, "FINISHED")
        return record

    tracker.run_started("tiny on cpu", {"seed": 7})
    base = step("base", "base", {"weights": "base"}, step=3, metrics={"accuracy": 0.5}).as_input()
    data = step("data/math", "problems", {"train.jsonl": "{}"}, stage="math").as_input()
    other = step("data/code", "problems", {"train.jsonl": "[]"}, stage="code").as_input()
    train = step(
        "stages/math/train",
        "training",
        {"metrics.jsonl": curve_text()},
        *CURVE,
        inputs={"parent": base, "problems": data},
        stage="math",
        step=3,
        config={"algorithm": {"name": "gspo", "clip@low": 0.002}, "long": "x" * 9000},
        metrics={"loss": 0.5},
    )
    decision = Decision(rule="peak", chosen_step=3, candidates=(Candidate(step=3, value=0.3),))
    checkpoint = step(
        "stages/math/checkpoint",
        "checkpoint",
        {"weights": "math"},
        inputs={"training": train.as_input()},
        stage="math",
        step=3,
        decision=decision,
        metrics={"best@1": 0.3},
    )
    step(
        "scores/math",
        "scores",
        {"math.json": "{}"},
        inputs={"checkpoint": checkpoint.as_input(), "problems/code": other, "problems/math": data},
        stage="math",
        config={"benchmarks": {"sums": {"stage": "math"}, "coding": {"stage": "code"}}},
        metrics={"sums": 0.75, "coding": 0.25},
    )
    return records


def client_of(home: Path) -> MlflowClient:
    uri = f"sqlite:///{home.absolute()}/mlflow/mlflow.db"
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def shown(client: MlflowClient, experiment: str = "tiny") -> dict[str, Any]:
    """What MLflow shows of each record and model, without its own ids, names of runs, and times."""
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    models = client.search_logged_models([found.experiment_id])
    digests = {model.model_id: model.tags["rufus.digest"] for model in models}
    runs = [client.get_run(run.info.run_id) for run in client.search_runs([found.experiment_id])]
    of_run = {run.info.run_id: run.data.tags.get("rufus.record", "") for run in runs}
    shows: dict[str, Any] = {}
    for run in (run for run in runs if of_run[run.info.run_id]):
        assert of_run[run.info.run_id] not in shows, "a record has two runs"
        shows[of_run[run.info.run_id]] = {
            "status": run.info.status,
            "key": run.data.tags["rufus.key"],
            "params": run.data.params,
            "curves": {name: sorted(_points(client, run.info.run_id, name)) for name in run.data.metrics},
            "models": sorted(digests[one.model_id] for one in run.inputs.model_inputs),
            "datasets": sorted((one.dataset.name, one.dataset.digest) for one in run.inputs.dataset_inputs),
            "made": sorted(digests[one.model_id] for one in run.outputs.model_outputs),
        }
    for model in models:
        measured = sorted((m.key, m.value, m.step, m.dataset_name, m.dataset_digest) for m in model.metrics or ())
        tags = {name: value for name, value in model.tags.items() if name.startswith("rufus.")}
        shows[digests[model.model_id]] = {
            "source": of_run.get(model.source_run_id),
            "tags": tags,
            "params": model.params,
            "metrics": measured,
            "registered": model.tags.get("mlflow.modelVersions"),
        }
    for registered in client.search_registered_models():
        for alias, version in registered.aliases.items():
            shows[f"{registered.name}@{alias}"] = client.get_model_version(registered.name, version).tags
    return shows


def _points(client: MlflowClient, run: str, name: str) -> Iterator[tuple[int, float]]:
    return ((point.step, point.value) for point in client.get_metric_history(run, name))
