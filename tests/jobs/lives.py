"""Training jobs of several ranks, each life a process of its own: killed, bereaved, told to stop, undisturbed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from rufus_core.errors import JobLost, Preempted, RankLost
from rufus_core.jobs.document import JobDocument
from rufus_core.jobs.failure import told_failure
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.run import main
from rufus_core.jobs.training import train_rank
from rufus_core.settings import ExecutionSettings
from rufus_core.training.ranks import Ranks
from tests.warm import started

CarryOut = Callable[[Path], None]
_GONE_SECONDS = 60.0  # a loaded machine takes its time


def carry_out(document: Path) -> None:
    sys.exit(main(document))


@dataclass(frozen=True)
class Life:
    """A job in a process of its own, as `python -m rufus_core.jobs` carries it out."""

    folder: Path
    process: BaseProcess

    @classmethod
    def begin(cls, document: JobDocument, folder: Path, how: CarryOut = carry_out) -> Life:
        folder.mkdir()
        document = document.model_copy(update={"progress": folder / "progress.jsonl"})
        document.save(folder / "document.json")
        return cls(folder, started(how, folder / "document.json"))

    def family(self) -> list[psutil.Process]:
        """All processes of the job once a second step is told: by then there is a state."""
        while self._told() < 2:
            self.process.join(0.05)
            assert self.process.is_alive(), told_failure(self.folder)
        return psutil.Process(self.process.pid).children(recursive=True)

    def _told(self) -> int:
        progress = self.folder / "progress.jsonl"
        lines = progress.read_text().splitlines(keepends=True) if progress.exists() else []
        return max((json.loads(line).get("step", 0) for line in lines if line.endswith("\n")), default=0)

    def end(self) -> int | None:
        self.process.join()
        return self.process.exitcode


def live_and_be_killed(document: JobDocument, folder: Path, how: CarryOut = carry_out) -> None:
    """One life of two ranks that ends by SIGKILL, once there is a state. It leaves no process."""
    killed = Life.begin(document, folder, how)
    family = killed.family()
    assert len(_ranks_of(family)) == 2
    os.kill(killed.process.pid or 0, signal.SIGKILL)
    assert killed.end() == -signal.SIGKILL
    assert none_lives(family)


def live_through_everything(document: JobDocument, folder: Path) -> None:
    """A life that is killed, one that loses a rank, one that is stopped, and one that ends."""
    live_and_be_killed(document, folder / "killed")
    bereaved = Life.begin(document, folder / "bereaved")
    family = bereaved.family()
    _ranks_of(family)[1].kill()
    assert bereaved.end() == RankLost.exit_code == 1
    assert none_lives(family)
    failure = told_failure(bereaved.folder)
    assert failure is not None
    assert failure.type == "RankLost"
    assert "rank 1 of 2 died: " in failure.what or "rank 0 of 2 died: " in failure.what
    assert isinstance(failure.as_error(), JobLost)  # hence tried again by itself

    stopped = Life.begin(document, folder / "stopped")
    family = stopped.family()
    stopped.process.terminate()
    assert stopped.end() == Preempted.exit_code == 143
    assert none_lives(family)

    assert Life.begin(document, folder / "last").end() == 0


def _ranks_of(family: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in family if process.name().startswith("ray::_Rank")]


def none_lives(family: list[psutil.Process]) -> bool:
    """Once they had time to go."""
    return not psutil.wait_procs(family, timeout=_GONE_SECONDS)[1]


def job_in(folder: Path, document: JobDocument) -> Job:
    """A training that is carried out by hand, in a new folder."""
    (folder / "output").mkdir(parents=True)
    told = document.model_copy(update={"progress": folder / "progress.jsonl"})
    return Job(told, folder / "output", folder / "state", ExecutionSettings.model_validate(document.placement))


def train(ranks: Ranks, job: Job) -> Outcome:
    return train_rank(job, ranks, threading.Event())


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
