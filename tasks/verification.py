"""Compares what MLflow shows of checkpoints with their records. Reads only."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LoggedModel, ViewType

from rufus_core.lineage.adopt import ADOPTED
from rufus_core.lineage.process import ProcessId
from rufus_core.lineage.record import Record
from rufus_core.ports.orchestration import Difference
from tasks.databases import mlflow_uri, reason, without_password
from tasks.entries import MODEL_KINDS, inputs_of
from tasks.mlflow_projection import MAX_DIGEST, OUTAGES, metric_name

REBUILD = "rufus rebuild-mlflow"
PAGE = 100


def verify_mlflow(home: Path, records: Sequence[Record], only: Collection[str] | None) -> list[Difference]:
    """What MLflow lacks or shows otherwise. `records` are the store's; of `only` these ids where given."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        return list(_Comparison(home, records).differences(only))
    except OUTAGES as error:
        where = without_password(mlflow_uri(home / "mlflow"))
        return [Difference(where, f"MLflow can't be read: {reason(error)}", REBUILD)]


class _Comparison:
    def __init__(self, home: Path, records: Sequence[Record]) -> None:
        uri = mlflow_uri(home / "mlflow")
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._experiments = [each.experiment_id for each in self._client.search_experiments(view_type=ViewType.ALL)]
        self._records = {record.id: record for record in records}
        self._models: dict[str, list[LoggedModel]] = {}  # by the digest of the checkpoint
        self._digests: dict[str, str] = {}  # the same, by MLflow's id
        for model in self._all_models():
            digest = str(model.tags.get("rufus.digest"))
            self._models.setdefault(digest, []).append(model)
            self._digests[str(model.model_id)] = digest

    def differences(self, only: Collection[str] | None) -> Iterator[Difference]:
        wanted = [record for record in self._records.values() if only is None or record.id in only]
        for record in wanted:
            if record.kind in MODEL_KINDS and ADOPTED not in record.config:
                yield from self._checkpoint(record)
            elif record.kind == "scores":
                yield from self._scores(record)
        if only is None:
            yield from self._left_running()

    def _checkpoint(self, record: Record) -> Iterator[Difference]:
        models = self._models.get(record.digest, [])
        if not models:
            yield Difference(record.id, f"MLflow has no model with digest {record.digest[:12]}", REBUILD)
            return
        yield from self._metrics(record, models)
        sources = [model.source_run_id for model in models if model.source_run_id]
        if not sources:
            yield Difference(record.id, "MLflow doesn't show what made it", REBUILD)
            return
        shown = [self._edges(run) for run in sources]
        # Several records may have one digest: MLflow shows the edges of the first that it heard of.
        recorded = [
            self._inputs(each) for r in self._records.values() if r.digest == record.digest for each in self._makers(r)
        ]
        if not any(edges in recorded for edges in shown):
            yield Difference(record.id, "MLflow shows it made from other inputs than its record", REBUILD)

    def _scores(self, record: Record) -> Iterator[Difference]:
        checkpoint = record.inputs.get("checkpoint")
        if checkpoint is None:
            return
        models = self._models.get(checkpoint.digest, [])
        if not models:
            what = f"MLflow has no model with digest {checkpoint.digest[:12]}, which was measured here"
            yield Difference(record.id, what, REBUILD)
            return
        yield from self._metrics(record, models)

    def _metrics(self, record: Record, models: Sequence[LoggedModel]) -> Iterator[Difference]:
        shown: dict[str, list[float]] = {}
        for model in models:
            for metric in model.metrics or ():
                shown.setdefault(metric.key, []).append(metric.value)
        for name, value in record.metrics.items():
            values = shown.get(metric_name(name), [])
            if any(_same(value, each) for each in values):
                continue
            found = f"shows {', '.join(f'{each:.6g}' for each in values)}" if values else "doesn't show it"
            yield Difference(record.id, f"{name} is {value:.6g}, and MLflow {found}", REBUILD)

    def _makers(self, record: Record) -> Iterator[Record]:
        """Records whose run may be shown as a model's source: a checkpoint's is its training, where MLflow knows it."""
        yield record
        training = record.inputs.get("training")
        if training is not None and training.record_id in self._records:
            yield self._records[training.record_id]

    def _inputs(self, record: Record) -> tuple[frozenset[str], frozenset[str]]:
        """Digests of the models and of the data sets that a record was made from, as MLflow would show them."""
        models, datasets = inputs_of(record, self._records.get)
        return (
            frozenset(each["digest"] for each in models.values()),
            frozenset(each["digest"][:MAX_DIGEST] for each in datasets.values()),
        )

    def _edges(self, run_id: str) -> tuple[frozenset[str], frozenset[str]]:
        inputs = self._client.get_run(run_id).inputs
        models = (self._digests.get(each.model_id, "") for each in inputs.model_inputs)
        return frozenset(models), frozenset(each.dataset.digest for each in inputs.dataset_inputs)

    def _left_running(self) -> Iterator[Difference]:
        running = self._client.search_runs(self._experiments, "attributes.status = 'RUNNING'", ViewType.ALL)
        for run in running:
            owner = run.data.tags.get("rufus.owner")
            if owner and ProcessId.parse(owner).gone():
                yield Difference(f"MLflow run {run.info.run_name}", "is RUNNING, and its process is dead", "rufus run")

    def _all_models(self) -> Iterator[LoggedModel]:
        token = None
        while self._experiments:
            found = self._client.search_logged_models(self._experiments, max_results=PAGE, page_token=token)
            yield from found
            token = found.token
            if not token:
                return


def _same(recorded: float, shown: float) -> bool:
    if math.isnan(recorded):
        return math.isnan(shown)
    if math.isinf(recorded):  # MLflow keeps the largest number in its place
        return abs(shown) >= sys.float_info.max and (shown > 0) == (recorded > 0)
    return recorded == shown
