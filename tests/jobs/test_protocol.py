"""The job protocol with real processes: killed at each of its points, stopped, paused, and two at once."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rufus_core.errors import DataError, InfrastructureError, Preempted
from rufus_core.jobs import run
from rufus_core.jobs.document import InputArtifact, JobDocument
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.run import main, running_code
from rufus_core.lineage import Record, Store, fingerprint, lease
from rufus_core.lineage.crash_points import CRASH_AT, SHARING, CrashPoint
from rufus_core.lineage.files import entries
from rufus_core.lineage.lease import lease_file, read_holding
from tests.shared_roots import on_host

NAME = "stages/sft/train"
STEPS = 4
FORK = multiprocessing.get_context("fork")
Process = multiprocessing.context.ForkProcess
Hook = Callable[[Job, int], None]


def nothing(job: Job, step: int) -> None:
    pass


class Jobs:
    """Jobs of one step that counts to four, each with a file and a state a step. `did` lists what all of them did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "store")
        self.store.root.mkdir()
        self.started: list[Process] = []
        self._did = folder / "did.txt"
        running_code()  # once for all forks

    def document(self, number: int = 0, home: str = "home") -> JobDocument:
        """One of several artifacts of one name; in a home of its own, whose store is a link to the shared one."""
        home_folder = self.folder / home
        home_folder.mkdir(exist_ok=True)
        if not (home_folder / "store").exists():
            (home_folder / "store").symlink_to(self.folder / "store")
        return JobDocument(
            name=NAME,
            kind="training",
            title="train",
            version="1",
            fingerprint=fingerprint("training", "1", {"number": number}, {}),
            config={"number": number},
            store=home_folder / "store",
            progress=home_folder / "progress.jsonl",
        )

    def start(
        self, hook: Hook = nothing, document: JobDocument | None = None, crash_at: str | None = None, host: str = ""
    ) -> Process:
        """A job in a process of its own. `hook` runs within each step, before the step's files are written."""
        document = document or self.document()
        file = self.folder_of(document) / "document.json"
        document.save(file)
        (file.parent / "error.json").unlink(missing_ok=True)

        def work() -> None:
            os.setsid()
            with (file.parent / "job.log").open("a") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            if crash_at is not None:
                os.environ[CRASH_AT] = crash_at
            if host:
                on_host(host)
            run.handler = lambda kind: lambda job: self._count(job, hook)  # type: ignore[assignment]
            code = 1
            try:
                code = main(file)
            except BaseException:  # noqa: BLE001 (as the interpreter would)
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

        process = FORK.Process(target=work)
        process.start()
        self.started.append(process)
        return process

    def run(self, hook: Hook = nothing, document: JobDocument | None = None, crash_at: str | None = None) -> int | None:
        process = self.start(hook, document, crash_at)
        process.join()
        return process.exitcode

    def _count(self, job: Job, hook: Hook) -> Outcome:
        state = job.state / "step"
        first = int(state.read_text()) + 1 if state.exists() else 1
        with job.stoppable() as stop:
            for step in range(first, STEPS + 1):
                hook(job, step)
                (job.output / f"{step}.txt").write_text(str(step))
                with self._did.open("a") as did:
                    did.write(f"{step}\n")
                state.write_text(str(step))
                if stop.is_set():
                    raise Preempted(f"told to stop at step {step} of {STEPS}")
        return Outcome(step=STEPS)

    def did(self) -> list[int]:
        return [int(line) for line in self._did.read_text().split()] if self._did.exists() else []

    def folder_of(self, document: JobDocument) -> Path:
        return document.progress.parent

    def told(self, home: str = "home") -> dict[str, str]:
        return json.loads((self.folder / home / "error.json").read_text())

    def left(self) -> list[str]:
        return [entry.name for entry in entries(self.store.root / "attempts")]

    def owner(self, number: int = 0) -> object:
        return read_holding(lease_file(self.store.root, NAME, self.document(number).fingerprint)).owner

    def the_record(self) -> Record:
        """One whole artifact, no attempt, no lease."""
        (record,) = self.store.records()
        assert self.store.changes(record) == ()
        assert sorted(record.files) == [f"{step}.txt" for step in range(1, STEPS + 1)]
        assert self.left() == []
        assert self.owner() is None
        assert not (self.store.root / "replaced").exists()
        return record


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    for process in jobs.started:  # after a failed test
        process.kill()
        process.join()


def kill_at(step: int) -> Hook:
    def hook(_: Job, now: int) -> None:
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def fail_at(step: int, error: BaseException) -> Hook:
    def hook(_: Job, now: int) -> None:
        if now == step:
            raise error

    return hook


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


@pytest.mark.parametrize("point", [point for point in CrashPoint if point not in SHARING])
def test_killed_at_any_point_and_run_again_there_is_one_artifact_and_no_more(jobs: Jobs, point: CrashPoint) -> None:
    assert jobs.run(crash_at=point) == -signal.SIGKILL
    assert len(jobs.store.records()) == (point in (CrashPoint.AFTER_RENAME, CrashPoint.BEFORE_RELEASE))
    assert jobs.run() == 0
    jobs.the_record()
    assert jobs.did() == [1, 2, 3, 4]  # each once, whoever did it


def test_a_point_that_does_not_exist_is_refused(jobs: Jobs) -> None:
    with pytest.raises(ValueError, match="'lunch'"):
        CrashPoint("lunch")
    assert jobs.run(crash_at="lunch") == 1
    assert jobs.store.records() == ()


def test_killed_in_its_work_twice_the_next_goes_on_each_time(jobs: Jobs) -> None:
    assert jobs.run(kill_at(2)) == -signal.SIGKILL
    first = jobs.left()
    assert jobs.run(kill_at(4)) == -signal.SIGKILL
    assert jobs.left() == first
    assert jobs.run() == 0
    jobs.the_record()
    assert jobs.did() == [1, 2, 3, 4]


def test_without_state_the_next_starts_with_nothing(jobs: Jobs) -> None:
    def spill(job: Job, _: int) -> None:
        (job.output / "half.txt").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    assert jobs.run(spill) == -signal.SIGKILL
    assert jobs.run() == 0
    jobs.the_record()


def test_told_to_stop_it_keeps_its_state_and_the_next_goes_on(jobs: Jobs) -> None:
    assert jobs.run(lambda _, step: os.kill(os.getpid(), signal.SIGTERM) if step == 2 else None) == 143
    assert jobs.told()["type"] == "Preempted"
    assert jobs.owner() is None
    assert len(jobs.left()) == 1
    assert jobs.run() == 0
    jobs.the_record()
    assert jobs.did() == [1, 2, 3, 4]


@pytest.mark.parametrize("error", [DataError("bad"), ZeroDivisionError(), SystemExit(3)])
def test_what_failed_is_discarded_with_its_state(jobs: Jobs, error: BaseException) -> None:
    assert jobs.run(fail_at(3, error)) != 0
    assert jobs.left() == []
    assert jobs.owner() is None
    assert jobs.run() == 0
    jobs.the_record()
    assert jobs.did() == [1, 2, 1, 2, 3, 4]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), InfrastructureError("no sandbox")])
def test_what_the_machine_failed_goes_on(jobs: Jobs, error: Exception) -> None:
    assert jobs.run(fail_at(3, error)) != 0
    assert jobs.run() == 0
    jobs.the_record()
    assert jobs.did() == [1, 2, 3, 4]


def test_state_that_may_be_wanted_stays_until_its_step_is_published(jobs: Jobs) -> None:
    wanted = jobs.document(number=1)
    assert jobs.run(kill_at(3), wanted) == -signal.SIGKILL
    assert jobs.run(kill_at(1), jobs.document(number=2)) == -signal.SIGKILL  # leaves no state
    assert len(jobs.left()) == 2
    assert jobs.run() == 0
    (left,) = jobs.left()
    assert wanted.fingerprint in left
    assert jobs.run(document=wanted) == 0
    assert jobs.left() == []


def test_what_a_living_process_writes_stays(jobs: Jobs) -> None:
    mine = jobs.store.attempt(NAME, jobs.document(number=1).fingerprint)
    assert jobs.run() == 0
    assert mine.folder.is_dir()


def test_a_second_job_waits_for_the_first_also_from_another_home(jobs: Jobs) -> None:
    gate = jobs.folder / "gate"
    first = jobs.start(lambda *_: until(gate.exists))
    until(lambda: jobs.owner() is not None)
    other = jobs.document(home="other")
    second = jobs.start(document=other)
    log = jobs.folder_of(other) / "job.log"
    until(lambda: log.exists() and "waiting: " in log.read_text())
    gate.touch()
    first.join()
    second.join()
    assert (first.exitcode, second.exitcode) == (0, 0)
    jobs.the_record()
    assert jobs.did() == [1, 2, 3, 4]
    assert f"process {first.pid} on {platform.node()}" in log.read_text()
    told = [json.loads(line) for line in other.progress.read_text().splitlines()]
    assert [line["message"] for line in told] == [f"a job of process {first.pid} on {platform.node()} is making it"]


def test_the_waiting_one_goes_on_when_the_first_is_killed(jobs: Jobs) -> None:
    first = jobs.start(lambda _, step: time.sleep(600) if step == 3 else None)
    until(lambda: jobs.did() == [1, 2])
    until(lambda: any((jobs.store.root / "attempts").glob("*/state/step")))
    other = jobs.document(home="other")
    second = jobs.start(document=other)
    log = jobs.folder_of(other) / "job.log"
    until(lambda: log.exists() and "waiting: " in log.read_text())
    first.kill()
    first.join()
    second.join()
    assert second.exitcode == 0
    jobs.the_record()
    assert jobs.did() == [1, 2, 3, 4]


def test_a_job_that_lost_its_lease_stops_at_once_and_publishes_nothing(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is another host's: silent while it is paused, so the second takes over, from a copy of its state."""
    monkeypatch.setattr(lease, "EXPIRES_SECONDS", 1.0)

    def pause(job: Job, step: int) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)  # what it does after it woke up

    first = jobs.start(pause, host="there")
    until(lambda: jobs.did() == [1, 2] and psutil.Process(first.pid).status() == psutil.STATUS_STOPPED)
    assert jobs.run(document=jobs.document(home="other")) == 0
    record = jobs.the_record()
    os.kill(first.pid, signal.SIGCONT)
    first.join()
    assert first.exitcode == 1
    assert jobs.told()["type"] == "LeaseLost"
    assert "publishes nothing" in (jobs.folder / "home" / "job.log").read_text()
    assert jobs.the_record() == record
    assert jobs.did() == [1, 2, 3, 4]


def test_a_stale_job_that_ends_before_it_hears_of_its_loss_publishes_nothing(jobs: Jobs) -> None:
    """The token is checked where the artifact is put in place."""

    def lose(job: Job, step: int) -> None:
        file = lease_file(job.document.store, NAME, job.document.fingerprint)
        holding = json.loads(file.read_text())
        file.write_text(json.dumps({**holding, "token": holding["token"] + 1}))

    assert jobs.run(lose) == 1
    assert jobs.told()["type"] == "LeaseLost"
    assert jobs.store.records() == ()
    assert jobs.left() == []


def test_an_input_that_vanished_is_named(jobs: Jobs) -> None:
    gone = InputArtifact(name="base", digest="0" * 64, record_id="base/" + "0" * 16, path=jobs.folder / "gone")
    assert jobs.run(document=jobs.document().model_copy(update={"inputs": {"parent": gone}})) == 1
    assert jobs.told()["what"] == f"the parent {gone.record_id} is gone from the store"
    assert "run the same command again" in jobs.told()["hint"]
    assert jobs.did() == []


def test_an_artifact_that_can_not_be_read_is_named_and_kept(jobs: Jobs) -> None:
    assert jobs.run() == 0
    file = jobs.store.path(jobs.the_record()) / "record.json"
    record = json.loads(file.read_text())
    for text in ("{", json.dumps({**record, "schema_version": 99}), json.dumps({**record, "seed": 99})):
        file.write_text(text)
        assert jobs.run() == 1
        assert jobs.told()["where"] == str(jobs.folder / "home/store" / file.relative_to(jobs.store.root))
        assert "move that folder out of the store" in jobs.told()["hint"]
        assert file.read_text() == text
        assert (jobs.left(), jobs.owner()) == ([], None)


@pytest.mark.parametrize("force", [False, True])
def test_a_step_made_anew_by_force_with_other_bytes_takes_the_place(jobs: Jobs, force: bool) -> None:
    assert jobs.run() == 0
    document = jobs.document().model_copy(update={"force": force})

    def differ(job: Job, step: int) -> None:
        (job.output / "more.txt").write_text("more")

    assert jobs.run(document=document) == 0
    assert not (jobs.store.root / "replaced").exists()  # not made, or with the same bytes
    assert jobs.run(differ, document) == 0
    (record,) = jobs.store.records()
    assert ("more.txt" in record.files) is force
    assert jobs.store.changes(record) == ()
    assert (jobs.store.root / "replaced").exists() is force
