"""Entries on their way to MLflow: kept on disk first, sent by a thread, so that no run waits for tracking.

    mlflow/unsent/<time>-<id>.jsonl   a journal for each run; locked while its process lives, gone once all is sent
    mlflow/refused.jsonl              entries that MLflow refuses whenever they come, and why
    mlflow/writing.lock               held by whoever opens the database, sends what a dead run left, or rebuilds

Sending an entry again changes nothing, so a journal whose sender was killed is sent from its start.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rufus_core.lineage.files import locked
from tasks.databases import reason

if TYPE_CHECKING:
    from tasks.mlflow_projection import MlflowProjection

RETRY_SECONDS = 30.0  # between two tries to reach an MLflow that is out
CLOSE_SECONDS = 60.0  # the most that a finished run waits for its last entries

Entry = Mapping[str, Any]  # `entry` is a method of the projection, the rest its arguments
Warn = Callable[[str], None]


class Sender:
    """Sends the entries of one run in order, from a thread of its own. `warn` hears once of an outage.

    While MLflow is out it is tried again every RETRY_SECONDS and once at the end; what is left waits for the next run.
    """

    def __init__(self, folder: Path, experiment: str, warn: Warn) -> None:
        self._folder, self._experiment, self._warn = folder, experiment, warn
        self._more = threading.Condition()
        self._waiting: deque[Entry] = deque()
        self._closing = False
        self._told: set[str] = set()
        self._journal: IO[str] | None = None
        self._file = folder / "unsent" / f"{time.time_ns() // 1000:018d}-{uuid.uuid4().hex[:8]}.jsonl"
        with self._keeping():
            self._journal = _locked_journal(self._file)
            self._journal.write(json.dumps({"experiment": experiment}) + "\n")
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def send(self, entry: str, **arguments: Any) -> None:
        """Keep an entry on disk and return; it is sent when its turn comes."""
        with self._more:
            line = {"entry": entry, **arguments}
            with self._keeping():
                if self._journal is not None:
                    self._journal.write(json.dumps(line) + "\n")
                    self._journal.flush()
            self._waiting.append(line)
            self._more.notify()

    def close(self) -> None:
        """Wait until all is sent, or MLflow is found to be out."""
        with self._more:
            self._closing = True
            self._more.notify()
        self._thread.join(CLOSE_SECONDS)
        if not self._waiting:
            self._file.unlink(missing_ok=True)
        if self._journal is not None:
            self._journal.close()

    def _work(self) -> None:
        from tasks.mlflow_projection import OUTAGES  # MLflow takes seconds to import

        projection: MlflowProjection | None = None
        while True:
            with self._more:
                self._more.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                entry, last_try = self._waiting[0], self._closing
            try:
                if projection is None:
                    projection = self._open()
                apply(projection, entry, self._folder, self._warn_once)
            except OUTAGES as error:
                self._warn_once(f"MLflow can't be written; its entries wait in {self._file.parent}", reason(error))
                projection = None
                if last_try:
                    return
                with self._more:
                    self._more.wait_for(lambda: self._closing, RETRY_SECONDS)
            else:
                with self._more:
                    self._waiting.popleft()

    def _open(self) -> MlflowProjection:
        from tasks.mlflow_projection import open_home

        with writing(self._folder):
            send_leftovers(self._folder, self._warn_once)
            projection = open_home(self._folder, self._experiment)
            projection.end_orphans()
        return projection

    def _warn_once(self, what: str, why: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._warn(f"{what}: {why}")

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # training never stops for tracking
            self._warn_once("entries for MLflow can't be kept on disk", str(error))


def apply(projection: MlflowProjection, entry: Entry, folder: Path, warn: Callable[[str, str], None]) -> None:
    """Send one entry. What MLflow would refuse at every try is put aside, so that it holds nothing up."""
    from tasks.mlflow_projection import Refused

    try:
        projection.apply(entry)
    except Refused as error:
        with (folder / "refused.jsonl").open("a") as file:
            file.write(json.dumps({**entry, "why": str(error)}) + "\n")
        warn(f"MLflow refused an entry, which is kept in {folder / 'refused.jsonl'}", str(error))


def send_leftovers(folder: Path, warn: Callable[[str, str], None]) -> None:
    """Send what dead runs left, oldest first. The caller holds `writing`."""
    from tasks.mlflow_projection import open_home

    for journal in leftovers(folder):
        with journal:
            experiment, entries = read_journal(journal)
            if entries:
                projection = open_home(folder, experiment)
                for entry in entries:
                    apply(projection, entry, folder, warn)
            Path(journal.name).unlink()


def leftovers(folder: Path) -> Iterator[IO[str]]:
    """Journals whose process is gone, oldest first, each open and locked."""
    for file in sorted((folder / "unsent").glob("*.jsonl")):
        with suppress(FileNotFoundError, BlockingIOError):
            journal = file.open("r+")
            try:
                flock(journal, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                journal.close()
                raise
            yield journal


def any_alive(folder: Path) -> bool:
    """Whether a run that lives may write to MLflow."""
    files = list((folder / "unsent").glob("*.jsonl"))
    dead = 0
    for journal in leftovers(folder):
        journal.close()
        dead += 1
    return dead < len(files)


def read_journal(journal: IO[str]) -> tuple[str, list[Entry]]:
    """Experiment and entries. A line that a killed writer cut short is left out."""
    lines = []
    for line in journal:
        with suppress(ValueError):
            lines.append(json.loads(line))
    return (lines[0]["experiment"], lines[1:]) if lines else ("", [])


def writing(folder: Path) -> AbstractContextManager[None]:
    """One process at a time: two first uses at once would both create the tables, and two replays send twice."""
    return locked(folder / "writing.lock")


def _locked_journal(file: Path) -> IO[str]:
    """A new journal, locked before others can see it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    hidden = file.with_suffix(".new")
    journal = hidden.open("w")
    flock(journal, LOCK_EX)
    hidden.rename(file)
    return journal
