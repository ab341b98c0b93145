"""Entries of runs, written into MLflow. Keys are the caller's; MLflow's own ids stay inside.

Every entry may come twice, as when a replay was killed: the second time changes nothing.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import tenacity
from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    LoggedModel,
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

from rufus_core.lineage.process import ProcessId
from tasks.databases import first_use, home_database, mlflow_elsewhere

OUTAGES = (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, httpx.HTTPError)
REFUSALS = ("INVALID_PARAMETER_VALUE", "INVALID_STATE", "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST")
ENTRIES = ("start_run", "mark_run", "log_metrics", "log_inputs", "log_model", "point_alias", "end_run")

MAX_DIGEST = 36  # characters that MLflow keeps of a dataset's digest
MAX_VALUE = 6000  # it cuts longer values in silence
BATCH_METRICS, BATCH_PARAMS = 1000, 100  # its limits for one call
NOTE = "mlflow.note.content"  # what its pages show as the description
VERSIONS = "mlflow.modelVersions"  # from here a model's page knows that it is registered
ANSWER_SECONDS = 10.0
TRIES = 5  # of an entry that another home writes at the same moment

Artifact = Mapping[str, str]  # name, digest, record (its id)


class Refused(Exception):
    """MLflow is there, and refuses this entry whenever it comes."""


def open_home(folder: Path, experiment: str) -> MlflowProjection:
    """Opens the MLflow that the environment names, else (and creates) `folder/mlflow.db`.

    Fails at once where MLflow would retry for 100 seconds.
    """
    elsewhere = mlflow_elsewhere()
    return open_elsewhere(elsewhere, experiment) if elsewhere else open_database(home_database(folder), experiment)


def open_elsewhere(uri: str, experiment: str) -> MlflowProjection:
    """Opens a server, or a database that other homes may use too."""
    if uri.startswith("http"):
        httpx.get(f"{uri.rstrip('/')}/health", timeout=ANSWER_SECONDS).raise_for_status()
    with first_use(uri):
        return MlflowProjection(uri, experiment)


def open_database(database: Path, experiment: str) -> MlflowProjection:
    with closing(sqlite3.connect(database)) as probe:
        probe.execute("SELECT count(*) FROM sqlite_master")
    return MlflowProjection(f"sqlite:///{database}", experiment, (database.parent / "artifacts").as_uri())


class MlflowProjection:
    """One experiment of the MLflow at `uri`: a database, or a server. `artifacts` is a place that it will not use."""

    def __init__(self, uri: str, experiment: str, artifacts: str | None = None) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._experiment = self._opened(experiment, artifacts)
        self._runs: dict[str, str] = {}

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Carry out one entry. Raises Refused, or one of OUTAGES: then it may be tried again."""
        arguments = dict(entry)
        name = arguments.pop("entry", None)
        if name not in ENTRIES:
            raise Refused(f"there is no entry {name!r}")
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(TRIES), retry=tenacity.retry_if_exception(_collided), reraise=True
        )
        try:
            retrying(getattr(self, name), **arguments)
        except MlflowException as error:
            if error.error_code in REFUSALS:
                raise Refused(str(error)) from error
            raise
        except TypeError as error:  # of another release
            raise Refused(f"{name}: {error}") from error

    def start_run(self, key: str, name: str, at: int, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """`tags` may name a parent run under `rufus.parent`, by its key. `at` is in milliseconds since the epoch."""
        run_id = self._known(key)
        if run_id is None:
            marks = {**tags, "rufus.key": key}
            if "rufus.parent" in tags:
                marks["mlflow.parentRunId"] = self._run(tags["rufus.parent"])
            run_id = self._client.create_run(self._experiment, at, marks, name).info.run_id
            self._runs[key] = run_id
        rows = [Param(metric_name(k), _value(v)) for k, v in params.items()]
        for start in range(0, len(rows), BATCH_PARAMS):
            self._client.log_batch(run_id, params=rows[start : start + BATCH_PARAMS])

    def mark_run(self, key: str, tags: Mapping[str, str]) -> None:
        self._client.log_batch(self._run(key), tags=[RunTag(k, _value(v)) for k, v in tags.items()])

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
            about["model_id"] = self._model(model).model_id
        if dataset is not None:
            about |= {"dataset_name": dataset["name"], "dataset_digest": dataset["digest"][:MAX_DIGEST]}
        metrics = [Metric(metric_name(name), float(value), at, step, **about) for name, value, step, at in rows]
        for start in range(0, len(metrics), BATCH_METRICS):
            self._client.log_batch(self._run(key), metrics=metrics[start : start + BATCH_METRICS])

    def log_inputs(self, key: str, models: Sequence[Artifact], datasets: Sequence[Artifact]) -> None:
        """What a run read. MLflow refuses an edge that it has."""
        run = self._client.get_run(self._run(key))
        known = {one.model_id for one in run.inputs.model_inputs}
        wanted = dict.fromkeys(self._model(model).model_id for model in models)
        self._client.log_inputs(
            run.info.run_id,
            datasets=[
                DatasetInput(Dataset(d["name"], d["digest"][:MAX_DIGEST], "local", json.dumps(dict(d))))
                for d in datasets
            ],
            models=[LoggedModelInput(model_id) for model_id in wanted if model_id not in known],
        )

    def log_model(
        self,
        key: str,
        model: Artifact,
        step: int,
        params: Mapping[str, str],
        parents: Sequence[Artifact],
        others: Sequence[Artifact],
        datasets: Sequence[Artifact],
        source: str | None,
    ) -> None:
        """A checkpoint that a run made. Its weights stay in the store: MLflow knows name and digest.

        `parents` and `others` are the models it was made from, `source` the record of the training that made it.
        """
        own = self._run(key)
        run_id = (self._search(f"tags.`rufus.record` = '{source}'") if source else None) or own
        made = self._model(model, run_id)
        note = [f"digest `{model['digest']}`", "", "| made from | digest |", "|---|---|"]
        note += [f"| parent: {self._link(one)} | `{one['digest']}` |" for one in parents]
        note += [f"| model: {self._link(one)} | `{one['digest']}` |" for one in others]
        note += [f"| data: {one['name']} | `{one['digest']}` |" for one in datasets]
        tags = {
            "rufus.record": model["record"],
            "rufus.parents": ",".join(one["digest"] for one in parents),
            NOTE: "\n".join(note),
        }
        self._client.set_logged_model_tags(made.model_id, tags)
        missing = {metric_name(k): _value(v) for k, v in params.items() if metric_name(k) not in (made.params or {})}
        if missing:
            self._client.log_model_params(made.model_id, missing)
        for each in dict.fromkeys((run_id, own)):
            outputs = self._client.get_run(each).outputs.model_outputs
            if made.model_id not in {output.model_id for output in outputs}:
                self._client.log_outputs(each, [LoggedModelOutput(made.model_id, step)])

    def point_alias(self, registered: str, alias: str, model: Artifact) -> None:
        """Point an alias of the registered model at a checkpoint, of which it gets a version. No weights are copied."""
        if not self._client.search_registered_models(f"name = '{registered}'"):
            self._client.create_registered_model(registered, description="Checkpoints of a recipe; see `rufus trace`.")
        made = self._model(model)
        versions = self._client.search_model_versions(f"name = '{registered}'")
        version = next((v.version for v in versions if v.tags.get("rufus.digest") == model["digest"]), None)
        if version is None:
            tags = {"rufus.digest": model["digest"], "rufus.record": model["record"]}
            source = f"rufus:///{model['record']}"
            version = self._client.create_model_version(
                registered,
                source,
                made.source_run_id,
                tags,
                description=f"{model['name']}, digest {model['digest']}",
            ).version
        link = json.dumps([{"name": registered, "version": int(version)}])
        self._client.set_logged_model_tags(made.model_id, {VERSIONS: link})
        self._client.set_registered_model_alias(registered, alias, str(version))

    def end_run(self, key: str, status: str, at: int, tags: Mapping[str, str]) -> None:
        """`status` is MLflow's: FINISHED, FAILED or KILLED."""
        self.mark_run(key, tags)
        self._client.set_terminated(self._run(key), status, at)

    def end_orphans(self) -> None:
        """End as KILLED what a dead process left RUNNING."""
        running = self._client.search_runs([self._experiment], "attributes.status = 'RUNNING'", ViewType.ALL)
        for run in running:
            owner = run.data.tags.get("rufus.owner")
            if owner and ProcessId.parse(owner).gone():
                self._client.set_tag(run.info.run_id, "rufus.error", "the process that tracked this run died")
                self._client.set_terminated(run.info.run_id, "KILLED")

    def holds_other_runs(self, keys: Iterable[str]) -> bool:
        """Whether a run is there whose key is none of these."""
        known, token = set(keys), None
        while True:
            page = self._client.search_runs([self._experiment], run_view_type=ViewType.ALL, page_token=token)
            if any(run.data.tags.get("rufus.key") not in known for run in page):
                return True
            token = page.token
            if not token:
                return False

    def _opened(self, experiment: str, artifacts: str | None) -> str:
        """The id of the experiment, which another process may be creating now."""
        known = self._client.get_experiment_by_name(experiment)
        if known is None:
            try:
                return str(self._client.create_experiment(experiment, artifacts))
            except MlflowException as error:
                known = self._client.get_experiment_by_name(experiment)
                if known is None:
                    raise error
        return str(known.experiment_id)

    def _run(self, key: str) -> str:
        run_id = self._known(key)
        if run_id is None:
            raise Refused(f"MLflow has no run with key {key}")
        return run_id

    def _known(self, key: str) -> str | None:
        if key not in self._runs:
            found = self._search(f"tags.`rufus.key` = '{key}'")
            if found is None:
                return None
            self._runs[key] = found
        return self._runs[key]

    def _search(self, query: str) -> str | None:
        found = self._client.search_runs([self._experiment], query, max_results=1)
        return str(found[0].info.run_id) if found else None

    def _model(self, model: Artifact, source_run: str | None = None) -> LoggedModel:
        """The logged model with this digest. One that MLflow doesn't know (yet, or any more) is made."""
        query = f"tags.`rufus.digest` = '{model['digest']}'"
        found = self._client.search_logged_models([self._experiment], query, max_results=1)
        if found:
            return found[0]
        made = self._client.create_logged_model(
            self._experiment,
            name=re.sub(r"[^\w-]", "-", model["name"]),
            source_run_id=source_run,
            tags={"rufus.name": model["name"], "rufus.digest": model["digest"]},
        )
        return self._client.finalize_logged_model(made.model_id, LoggedModelStatus.READY)

    def _link(self, model: Artifact) -> str:
        return f"[{model['name']}](#/experiments/{self._experiment}/models/{self._model(model).model_id})"


def _collided(error: BaseException) -> bool:
    """Whether another home wrote the same row first, which MLflow looks for and then creates."""
    return isinstance(error, MlflowException) and "UniqueViolation" in str(error)


def metric_name(text: str) -> str:
    """A name that MLflow takes: it refuses `@` and most other signs."""
    return re.sub(r"[^\w\-. :/]", "_", text.replace("@", "_at_"))[:250]


def _value(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"({len(text)} characters, see the record)"
