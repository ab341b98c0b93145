"""What a run says, written into MLflow's SQLite store. Keys are the caller's; MLflow's own ids stay inside."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    LoggedModelInput,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    Param,
    RunTag,
    ViewType,
)
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from tasks.processes import ProcessId

OUTAGES = (MlflowException, SQLAlchemyError, sqlite3.Error, OSError)

MAX_DIGEST = 36  # characters that MLflow keeps of a dataset's digest
MAX_VALUE = 6000  # it cuts longer values in silence
BATCH_METRICS, BATCH_PARAMS = 1000, 100  # its limits for one call

Artifact = Mapping[str, str]  # name, digest


class MlflowProjection:
    """Opens (and creates) `folder/mlflow.db`. Runs that a dead process left RUNNING are ended as KILLED."""

    def __init__(self, folder: Path, experiment: str) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        database = folder.absolute() / "mlflow.db"
        with closing(sqlite3.connect(database)) as probe:  # fails at once where MLflow would retry for 100 seconds
            probe.execute("SELECT count(*) FROM sqlite_master")
        uri = f"sqlite:///{database}"
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        known = self._client.get_experiment_by_name(experiment)
        artifacts = (folder.absolute() / "artifacts").as_uri()
        self._experiment = known.experiment_id if known else self._client.create_experiment(experiment, artifacts)
        self._runs: dict[str, str] = {}
        self._end_orphans()

    def start_run(self, key: str, name: str, owner: str, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """`tags` may name a parent run under `rufus.parent`, by its key."""
        marks = {**tags, "rufus.key": key, "rufus.owner": owner}
        if "rufus.parent" in tags:
            marks["mlflow.parentRunId"] = self._run(tags["rufus.parent"])
        run = self._client.create_run(self._experiment, run_name=name, tags=marks)
        self._runs[key] = run.info.run_id
        rows = [Param(_name(k), _value(v)) for k, v in params.items()]
        for start in range(0, len(rows), BATCH_PARAMS):
            self._client.log_batch(run.info.run_id, params=rows[start : start + BATCH_PARAMS])

    def log_metrics(
        self,
        key: str,
        rows: Sequence[tuple[str, float, int, int]],
        model: Artifact | None = None,
        dataset: Artifact | None = None,
    ) -> None:
        """Rows are (name, value, step, milliseconds since the epoch)."""
        about: dict[str, Any] = {}
        if model is not None:
            about["model_id"] = self._model(model)
        if dataset is not None:
            about |= {"dataset_name": dataset["name"], "dataset_digest": dataset["digest"][:MAX_DIGEST]}
        metrics = [Metric(_name(name), value, at, step, **about) for name, value, step, at in rows]
        for start in range(0, len(metrics), BATCH_METRICS):
            self._client.log_batch(self._run(key), metrics=metrics[start : start + BATCH_METRICS])

    def log_inputs(self, key: str, models: Sequence[Artifact], datasets: Sequence[Artifact]) -> None:
        """What a run read. Once per run: MLflow refuses an edge that it has."""
        self._client.log_inputs(
            self._run(key),
            datasets=[
                DatasetInput(Dataset(d["name"], d["digest"][:MAX_DIGEST], "local", json.dumps(dict(d))))
                for d in datasets
            ],
            models=[LoggedModelInput(model_id) for model_id in dict.fromkeys(self._model(m) for m in models)],
        )

    def log_model(
        self, key: str, model: Artifact, step: int, params: Mapping[str, str], parents: Sequence[str]
    ) -> None:
        """A checkpoint that a run made. Its weights stay in the store: MLflow knows name and digest."""
        tags = {"rufus.parents": ",".join(parents)}
        model_id = self._model(model, self._run(key), params, tags)
        self._client.log_outputs(self._run(key), [LoggedModelOutput(model_id, step)])

    def end_run(self, key: str, status: str, tags: Mapping[str, str]) -> None:
        """`status` is MLflow's: FINISHED, FAILED or KILLED."""
        self._client.log_batch(self._run(key), tags=[RunTag(k, _value(v)) for k, v in tags.items()])
        self._client.set_terminated(self._run(key), status)

    def _run(self, key: str) -> str:
        if key not in self._runs:
            found = self._client.search_runs([self._experiment], f"tags.`rufus.key` = '{key}'", max_results=1)
            if not found:
                raise MlflowException(f"MLflow has no run with key {key}")
            self._runs[key] = found[0].info.run_id
        return self._runs[key]

    def _model(
        self,
        model: Artifact,
        source_run: str | None = None,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """The logged model with this digest. One that MLflow doesn't know (yet, or any more) is made."""
        query = f"tags.`rufus.digest` = '{model['digest']}'"
        found = self._client.search_logged_models([self._experiment], query, max_results=1)
        if found:
            return str(found[0].model_id)
        made = self._client.create_logged_model(
            self._experiment,
            name=re.sub(r"[^\w-]", "-", model["name"]),
            source_run_id=source_run,
            tags={**(tags or {}), "rufus.name": model["name"], "rufus.digest": model["digest"]},
            params={_name(k): _value(v) for k, v in (params or {}).items()},
        )
        self._client.finalize_logged_model(made.model_id, LoggedModelStatus.READY)
        return str(made.model_id)

    def _end_orphans(self) -> None:
        running = self._client.search_runs([self._experiment], "attributes.status = 'RUNNING'", ViewType.ALL)
        for run in running:
            owner = run.data.tags.get("rufus.owner")
            if owner and ProcessId.parse(owner).find() is None:
                self._client.set_tag(run.info.run_id, "rufus.error", "the process that tracked this run died")
                self._client.set_terminated(run.info.run_id, "KILLED")


def milliseconds() -> int:
    return int(time.time() * 1000)


def _name(text: str) -> str:
    """A name that MLflow takes: it refuses `@` and most other signs."""
    return re.sub(r"[^\w\-. :/]", "_", text.replace("@", "_at_"))[:250]


def _value(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"({len(text)} characters, see the record)"
