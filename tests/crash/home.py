"""A home whose run is killed again and again, and what has to hold once it is through."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from rufus_core.lineage.crash_points import CRASH_AT, CRASH_LOG
from rufus_core.lineage.store import Store

RUFUS = str(Path(sys.executable).with_name("rufus"))
POLL_SECONDS = 0.05
RUNNING_PREFECT = ("RUNNING", "PENDING", "SCHEDULED", "CANCELLING")


@dataclass(frozen=True)
class CrashHome:
    """A folder for runs of one recipe. Its processes are known by the variable that names it, which they inherit."""

    folder: Path
    overrides: tuple[str, ...]

    @property
    def store(self) -> Store:
        return Store(self.folder / "store")

    def start(self, *options: str, crash_at: str | None = None, output: Path | None = None) -> subprocess.Popen[bytes]:
        """`rufus run`, in a session of its own. At the point `crash_at` each of its processes kills itself."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
        crash = {CRASH_AT: crash_at, CRASH_LOG: str(self._crash_log)} if crash_at else {}
        env = {**kept, "RUFUS_HOME": str(self.folder), **crash}
        words = [RUFUS, "run", *options, *(word for change in self.overrides for word in ("--set", change))]
        with (output or self.folder / "out.log").open("ab") as log:
            return subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True)

    @property
    def _crash_log(self) -> Path:
        return self.folder / "crashes.txt"

    def crashes(self) -> int:
        """How often a job of this home killed itself at a crash point."""
        return len(self._crash_log.read_text(encoding="utf-8").splitlines()) if self._crash_log.exists() else 0

    def processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("RUFUS_HOME") == str(self.folder):
                    yield process

    def jobs(self) -> dict[str, list[psutil.Process]]:
        """Living jobs by the name of their folder: leaders of a session whose output goes to a folder's log."""
        found: dict[str, list[psutil.Process]] = {}
        for process in self.processes():
            with suppress(OSError, psutil.Error):
                log = Path(f"/proc/{process.pid}/fd/1").readlink()
                if log.name == "job.log" and os.getsid(process.pid) == process.pid and process.status() != "zombie":
                    found.setdefault(log.parent.name, []).append(process)
        return found

    def server(self, words: str) -> psutil.Process | None:
        """The process of this home whose command line holds the words."""
        for process in self.processes():
            with suppress(psutil.Error):
                if words in " ".join(process.cmdline()) and "tasks.guard" not in process.cmdline():
                    return process
        return None

    def artifacts(self) -> dict[str, str]:
        """Digest by id of each artifact: what a run is compared by."""
        return {record.id: record.digest for record in self.store.records()}

    def faults(self, wanted: dict[str, str]) -> list[str]:
        """All that differs from what an undisturbed run left, and all that a crash left behind."""
        return [*self._lineage_faults(wanted), *self._step_faults(), *self._tracking_faults(), *self._leftovers()]

    def _lineage_faults(self, wanted: dict[str, str]) -> Iterator[str]:
        made = self.artifacts()
        for key in sorted(wanted.keys() | made.keys()):
            if made.get(key) != wanted.get(key):
                yield f"{key}: {made.get(key)} instead of {wanted.get(key)}"
        for record in self.store.records():
            for change in self.store.changes(record):
                yield f"{record.id}: {change.path} {change.change}"

    def _step_faults(self) -> Iterator[str]:
        """Steps that are missing from the curves of a training, or stand there twice.

        Which problems each trained on needs no look of its own: the training's bytes tell, and those are compared.
        """
        for record in self.store.records():
            if record.kind == "training":
                steps = [line["step"] for line in _lines(self.store.path(record) / "metrics.jsonl")]
                if steps != list(range(1, len(steps) + 1)):
                    yield f"{record.id}: metrics of steps {steps}"

    def _tracking_faults(self) -> Iterator[str]:
        with closing(_read_only(self.folder / "mlflow" / "mlflow.db")) as database:
            running = database.execute("SELECT count(*) FROM runs WHERE status = 'RUNNING'").fetchone()[0]
            twice = database.execute(
                "SELECT run_uuid, key, step FROM metrics GROUP BY run_uuid, key, step HAVING count(*) > 1"
            ).fetchall()
        if running:
            yield f"{running} runs of MLflow are RUNNING"
        yield from (f"MLflow has {key} of step {step} twice in run {run}" for run, key, step in twice)
        with closing(_read_only(self.folder / "prefect" / "prefect.db")) as database:
            for table in ("flow_run", "task_run"):
                states = Counter(state for (state,) in database.execute(f"SELECT state_type FROM {table}"))
                left = {state: count for state, count in states.items() if state in RUNNING_PREFECT}
                if left:
                    yield f"Prefect's {table} has {left}"

    def _leftovers(self) -> Iterator[str]:
        living = [f"{process.pid} {' '.join(process.cmdline())[:80]}" for process in self.processes()]
        if living:
            yield f"processes are alive: {living}"
        attempts = self.folder / "store" / "attempts"
        left = sorted(path.name for path in attempts.iterdir()) if attempts.exists() else []
        if left:
            yield f"attempts are left: {left}"


def _lines(file: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _read_only(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{file}?mode=ro", uri=True)
