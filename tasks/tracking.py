"""Tracks a run in MLflow: a run with a child for each job, curves, checkpoints as logged models, edges between them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rufus_core.errors import LineageError
from rufus_core.lineage.home import open_store
from rufus_core.lineage.process import ProcessId
from rufus_core.lineage.record import Record
from tasks.entries import Row, flatten, send_record, tags_of, without_last
from tasks.replay import Sender

FLUSH_METRICS = 200
FLUSH_SECONDS = 5.0


class Tracker:
    """Tracks one `rufus run`; safe to call from several threads, and never waits for MLflow but at the end.

    `warn` hears once of an outage.
    """

    def __init__(self, home: Path, experiment: str, warn: Callable[[str], None]) -> None:
        self._sender = Sender(home / "mlflow", experiment, warn)
        self._store = open_store(home)
        self._lock = threading.Lock()
        self._run = uuid.uuid4().hex
        self._steps: dict[str, str] = {}  # step -> key of its run
        self._curves: dict[str, _Curve] = {}

    def run_started(self, name: str, params: Mapping[str, Any]) -> None:
        self._start(self._run, name, params, {})

    def run_finished(self, status: str, tags: Mapping[str, str]) -> None:
        """`status` is MLflow's: FINISHED, FAILED or KILLED. Waits until MLflow has all, or is found to be out."""
        self._end(self._run, status, tags)
        self._sender.close()

    def step_started(self, step: str, title: str, params: Mapping[str, Any]) -> str:
        """The key of the step's run: the tag `rufus.key` in MLflow."""
        key = self._steps[step] = uuid.uuid4().hex
        self._curves[step] = _Curve()
        self._start(key, title, params, {"rufus.parent": self._run, "rufus.step": step})
        return key

    def progressed(self, step: str, number: int, metrics: Mapping[str, float]) -> None:
        """Metrics of training step `number`. A training step that a resumed job repeats counts once."""
        with self._lock:
            curve = self._curves[step]
            curve.add(number, metrics)
            if curve.is_due():
                self._log(step, curve.take())

    def step_finished(self, step: str, status: str, error: str = "") -> None:
        with self._lock:
            self._log(step, self._curves[step].take_all())
        self._end(self._steps[step], status, {"rufus.error": error} if error else {})

    def published(self, step: str, record: Record) -> None:
        """What a job made."""
        with self._lock:
            self._log(step, without_last(self._curves[step].take_all(), record))
        send_record(self._steps[step], record, self._find, self._sender.send)

    def aliased(self, alias: str, record: Record, registered: str) -> None:
        """`alias` of the registered model `registered` is this checkpoint from now on."""
        self._sender.send("point_alias", registered=registered, alias=alias, model=tags_of(record.as_input()))

    def _start(self, key: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        marks = {**tags, "rufus.owner": str(ProcessId.mine())}
        self._sender.send("start_run", key=key, name=name, at=milliseconds(), params=flatten(params), tags=marks)

    def _end(self, key: str, status: str, tags: Mapping[str, str]) -> None:
        self._sender.send("end_run", key=key, status=status, at=milliseconds(), tags=dict(tags))

    def _log(self, step: str, rows: Sequence[Row]) -> None:
        if rows:
            self._sender.send("log_metrics", key=self._steps[step], rows=rows)

    def _find(self, record_id: str) -> Record | None:
        try:
            return self._store.get(record_id)
        except LineageError:  # what is wrong with it is told where it is used
            return None


class _Curve:
    """Metrics of one step that wait for the next batch. The newest wait for one more: perhaps the record says them."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._last = -1
        self._sent = time.monotonic()

    def add(self, number: int, metrics: Mapping[str, float]) -> None:
        if number > self._last:
            self._last = number
            now = milliseconds()
            self._rows += [(name, value, number, now) for name, value in metrics.items()]

    def is_due(self) -> bool:
        return len(self._rows) >= FLUSH_METRICS or time.monotonic() - self._sent >= FLUSH_SECONDS

    def take(self) -> list[Row]:
        rows = [row for row in self._rows if row[2] != self._last]
        self._rows = [row for row in self._rows if row[2] == self._last]
        self._sent = time.monotonic()
        return rows

    def take_all(self) -> list[Row]:
        rows, self._rows = self._rows, []
        return rows


def milliseconds() -> int:
    """Now, since the epoch."""
    return int(time.time() * 1000)
