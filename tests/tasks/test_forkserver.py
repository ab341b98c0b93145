"""Jobs forked from a warm server, against jobs that are programs of their own. All processes are real."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from rufus_core.jobs.run import KINDS
from rufus_core.lineage import Store
from rufus_core.recipe.step import VERSIONS
from tasks.forkserver import serve
from tasks.jobs import JobCancelled
from tasks.launcher import LocalJob
from tasks.spawner import JOB_COMMAND, Spawner
from tests.tasks.base_document import FINGERPRINT, save_base_document

SERVER = "tasks.forkserver"


@pytest.fixture(scope="module")
def forks() -> Iterator[Spawner]:
    before = servers()
    with Spawner(threads=1) as spawner:
        yield spawner
    assert servers() == before


def base_job(folder: Path, spawner: Spawner, steps: int = 2, threads: int = 1) -> LocalJob:
    """Makes a base policy and trains it."""
    document = save_base_document(folder, steps, threads)
    return LocalJob(folder, partial(spawner.spawn, document))


def start(job: LocalJob) -> psutil.Process:
    job.start(lambda: None)
    return psutil.Process(json.loads((job.folder / "handle.json").read_text())["pid"])


def wait(job: LocalJob, on_progress: Any = lambda line: None) -> int | None:
    return job.wait(job.folder / "progress.jsonl", on_progress, threading.Event())


def servers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if SERVER in child.cmdline()]


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def digest(folder: Path) -> str:
    record = Store(folder / "store").find("base", FINGERPRINT)
    assert record is not None
    return record.digest


def test_forked_and_executed_jobs_give_the_same_bytes(tmp_path: Path, forks: Spawner) -> None:
    executed = Spawner(1, JOB_COMMAND)
    for name, spawner in {"executed": executed, "forked": forks}.items():
        job = base_job(tmp_path / name, spawner)
        start(job)
        assert wait(job) == 0, job.log.read_text()
    assert digest(tmp_path / "executed") == digest(tmp_path / "forked")


def test_exit_code_and_output_of_a_mistake_and_of_a_bug(tmp_path: Path, forks: Spawner) -> None:
    job = base_job(tmp_path, forks)
    document = json.loads((tmp_path / "document.json").read_text())
    for change, code, line in [
        ({"kind": "no such"}, 1, "error: no step makes artifacts of kind 'no such'\n"),
        ({"external": {"config.json": str(tmp_path / "none")}}, 1, "FileNotFoundError"),
    ]:
        (tmp_path / "document.json").write_text(json.dumps({**document, **change}))
        job.log.unlink(missing_ok=True)
        start(job)
        assert wait(job) == code
        assert line in job.log.read_text()


def test_a_job_that_is_killed_tells_the_signal(tmp_path: Path, forks: Spawner) -> None:
    job = base_job(tmp_path, forks, steps=100_000)
    start(job).kill()
    assert wait(job) == -9


def test_cancelling_leaves_no_job(tmp_path: Path, forks: Spawner) -> None:
    job = base_job(tmp_path, forks, steps=100_000)
    process = start(job)
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(JobCancelled):
        job.wait(tmp_path / "progress.jsonl", lambda line: None, cancelled)
    assert not psutil.pid_exists(process.pid)
    assert not Store(tmp_path / "store").records()


def test_the_server_has_no_thread_that_a_fork_would_lose(tmp_path: Path, forks: Spawner) -> None:
    start(base_job(tmp_path, forks)).kill()
    assert [server.num_threads() for server in servers()] == [1]


def test_a_job_outlives_its_server_and_later_ones_are_programs(tmp_path: Path) -> None:
    before = servers()
    with Spawner(threads=1) as spawner:
        job = base_job(tmp_path / "long", spawner, steps=100_000, threads=2)
        process = start(job)
        (server,) = (each for each in servers() if each not in before)

        seen: list[object] = []

        def on_step(line: object) -> None:
            seen.append(line)
            if len(seen) > 1:  # it wrote more before it was killed
                return
            assert os.getsid(process.pid) == process.pid
            assert Path(f"/proc/{process.pid}/fd/0").readlink() == Path(os.devnull)
            assert process.num_threads() > 1  # torch's, as many as the document says
            server.kill()
            server.wait()
            assert alive(process)
            late = base_job(tmp_path / "late", spawner)
            (late.folder / "document.json").write_text("{}")
            program = start(late)
            while not (line := program.cmdline()):  # for a moment, while it becomes another program
                pass
            assert "rufus_core.jobs" in line
            assert wait(late) == 1
            process.kill()

        assert wait(job, on_step) is None  # who knew its exit code is dead
    assert not alive(process)


def test_without_a_job_there_is_no_server() -> None:
    before = servers()
    with Spawner(threads=1):
        assert servers() == before


def test_the_server_ends_when_its_run_is_killed() -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    with its:
        serve(its)


def test_every_kind_of_step_is_imported_beforehand() -> None:
    assert set(KINDS) == set(VERSIONS)
