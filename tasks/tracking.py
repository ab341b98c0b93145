"""Tracks a run in MLflow: a run with a child for each job, curves, checkpoints as logged models, edges between them.

When MLflow fails, that entry and all later ones go to `unsent.jsonl`, in order: training never stops for tracking.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

from rufus_core.lineage.record import Input, Record
from tasks.mlflow_projection import OUTAGES, MlflowProjection, milliseconds
from tasks.processes import ProcessId

FLUSH_METRICS = 200
FLUSH_SECONDS = 5.0
MODEL_KINDS = ("base", "checkpoint")


class Tracker:
    """Tracks one `rufus run`; safe to call from several threads. `warn` hears once of an outage."""

    def __init__(self, home: Path, experiment: str, warn: Callable[[str], None]) -> None:
        self._folder = home / "mlflow"
        self._experiment = experiment
        self._warn = warn
        self._lock = threading.RLock()
        self._projection: MlflowProjection | None = None
        self._down = False
        self._run = uuid.uuid4().hex
        self._steps: dict[str, str] = {}  # step -> key of its run
        self._curves: dict[str, _Curve] = {}

    def run_started(self, name: str, params: Mapping[str, Any]) -> None:
        self._send("start_run", key=self._run, name=name, owner=_owner(), params=flatten(params), tags={})

    def run_finished(self, status: str, tags: Mapping[str, str]) -> None:
        """`status` is MLflow's: FINISHED, FAILED or KILLED."""
        self._send("end_run", key=self._run, status=status, tags=dict(tags))

    def step_started(self, step: str, title: str, params: Mapping[str, Any]) -> None:
        key = self._steps[step] = uuid.uuid4().hex
        self._curves[step] = _Curve()
        tags = {"rufus.parent": self._run, "rufus.step": step}
        self._send("start_run", key=key, name=title, owner=_owner(), params=flatten(params), tags=tags)

    def progressed(self, step: str, number: int, metrics: Mapping[str, float]) -> None:
        """Metrics of training step `number`. A training step that a resumed job repeats counts once."""
        with self._lock:
            curve = self._curves[step]
            curve.add(number, metrics)
            if curve.is_due():
                self._flush(step)

    def step_finished(self, step: str, status: str, error: str = "") -> None:
        self._flush(step)
        self._send("end_run", key=self._steps[step], status=status, tags={"rufus.error": error} if error else {})

    def published(self, step: str, record: Record, kinds: Mapping[str, str]) -> None:
        """What a job made. `kinds` says of which kind the input of each role is."""
        key = self._steps[step]
        models = [_artifact(one) for role, one in record.inputs.items() if kinds[role] in MODEL_KINDS]
        datasets = [_artifact(one) for role, one in record.inputs.items() if kinds[role] not in MODEL_KINDS]
        self._send("log_inputs", key=key, models=models, datasets=datasets)
        model = dataset = None
        if record.kind in MODEL_KINDS:
            model = {"name": record.name, "digest": record.digest}
            params = flatten({**record.config, "decision": record.decision and record.decision.model_dump(mode="json")})
            parents = [model["digest"] for model in models]
            self._send("log_model", key=key, model=model, step=record.step or 0, params=params, parents=parents)
        elif record.kind == "scores":
            model, dataset = next(iter(models), None), next(iter(datasets), None)
        now, at = milliseconds(), record.step or 0
        rows = [(name, value, at, now) for name, value in record.metrics.items()]
        self._send("log_metrics", key=key, rows=rows, model=model, dataset=dataset)

    def _flush(self, step: str) -> None:
        with self._lock:
            if rows := self._curves[step].take():
                self._send("log_metrics", key=self._steps[step], rows=rows)

    def _send(self, entry: str, **arguments: Any) -> None:
        """Call a method of the projection, or keep the call when MLflow is out."""
        with self._lock:
            if not self._down:
                try:
                    getattr(self._open(), entry)(**arguments)
                    return
                except OUTAGES as error:
                    self._down = True
                    why = str(error).strip().splitlines()[0]
                    self._warn(f"MLflow can't be written; its entries wait in {self._unsent}: {why}")
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._unsent.open("a") as file:
                file.write(json.dumps({"entry": entry, **arguments}) + "\n")

    @property
    def _unsent(self) -> Path:
        return self._folder / "unsent.jsonl"

    def _open(self) -> MlflowProjection:
        if self._projection is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "open.lock").open("w") as lock:  # two first uses at once would both create the tables
                flock(lock, LOCK_EX)
                self._projection = MlflowProjection(self._folder, self._experiment)
        return self._projection


class _Curve:
    """Metrics of one step that wait for the next batch."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, float, int, int]] = []
        self._last = -1
        self._sent = time.monotonic()

    def add(self, number: int, metrics: Mapping[str, float]) -> None:
        if number > self._last:
            self._last = number
            now = milliseconds()
            self._rows += [(name, value, number, now) for name, value in metrics.items()]

    def is_due(self) -> bool:
        return len(self._rows) >= FLUSH_METRICS or time.monotonic() - self._sent >= FLUSH_SECONDS

    def take(self) -> list[tuple[str, float, int, int]]:
        rows, self._rows, self._sent = self._rows, [], time.monotonic()
        return rows


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted names, None left out: {"a": {"b": 1}} is {"a.b": "1"}."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            flat[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _artifact(one: Input) -> dict[str, str]:
    return {"name": one.name, "digest": one.digest}


def _owner() -> str:
    return str(ProcessId.mine())
