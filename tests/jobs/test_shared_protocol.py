"""The job protocol between homes of different hosts that have nothing but a shared root in common."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rufus_core.jobs.document import JobDocument
from rufus_core.lineage import Record, Store, roots, shared_lease
from rufus_core.lineage.crash_points import SHARING, CrashPoint
from rufus_core.lineage.shared import Shared
from rufus_core.lineage.sharing import fetch
from tests.jobs.test_protocol import NAME, Jobs, until
from tests.shared_roots import Place, S3Server


class Homes(Jobs):
    """Each home has a store of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url

    def document(self, number: int = 0, home: str = "home") -> JobDocument:
        (self.folder / home / "store").mkdir(parents=True, exist_ok=True)
        return super().document(number, home).model_copy(update={"shared": self.url})

    def store_of(self, home: str) -> Store:
        return Store(self.folder / home / "store", shared=Shared.at(self.url))

    def record_of(self, home: str) -> Record:
        """The one artifact, whole, of a home."""
        store = self.store_of(home)
        (record,) = store.records()
        fetch(store, record)
        assert store.changes(record) == ()
        assert not (store.root / "replaced").exists()
        assert not any((store.root / "attempts").iterdir())
        return record


@pytest.fixture
def homes(tmp_path: Path, place: Place) -> Iterator[Homes]:
    homes = Homes(tmp_path, place.url)
    yield homes
    for process in homes.started:  # after a failed test
        process.kill()
        process.join()


@pytest.mark.parametrize("point", CrashPoint)
def test_killed_at_any_point_another_home_goes_on_and_both_end_with_one_record(homes: Homes, point: CrashPoint) -> None:
    assert homes.run(crash_at=point) == -signal.SIGKILL
    assert homes.run(document=homes.document(home="other")) == 0
    assert homes.run() == 0
    assert homes.record_of("home") == homes.record_of("other")
    shared = point in (CrashPoint.AFTER_SHARED_RECORD, CrashPoint.BEFORE_RELEASE)
    worked_first = point not in (CrashPoint.BEFORE_LEASE, CrashPoint.AFTER_LEASE, CrashPoint.ATTEMPT)
    assert homes.did() == [1, 2, 3, 4] * (2 if worked_first and not shared else 1)


@pytest.mark.parametrize("point", SHARING)
def test_killed_while_it_shares_the_same_home_mends_it_without_work(homes: Homes, point: CrashPoint) -> None:
    assert homes.run(crash_at=point) == -signal.SIGKILL
    assert homes.run() == 0
    assert homes.did() == [1, 2, 3, 4]
    assert homes.run(document=homes.document(home="other")) == 0
    assert homes.did() == [1, 2, 3, 4]
    assert homes.record_of("home") == homes.record_of("other")


def test_a_second_host_waits_for_the_first_and_takes_what_it_shared(homes: Homes) -> None:
    gate = homes.folder / "gate"
    first = homes.start(lambda *_: until(gate.exists), host="there")
    until(lambda: bool(homes.store_of("home").shared.root.keys("leases")))
    second = homes.start(document=homes.document(home="other"))
    log = homes.folder / "other" / "job.log"
    until(lambda: log.exists())
    gate.touch()
    first.join()
    second.join()
    assert (first.exitcode, second.exitcode) == (0, 0)
    assert homes.did() == [1, 2, 3, 4]
    assert homes.record_of("home") == homes.record_of("other")


def test_a_paused_host_loses_its_lease_and_its_late_work_harms_nobody(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_lease, "EXPIRES_SECONDS", 1.0)

    def pause(job: object, step: int) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)  # what it does after it woke up

    first = homes.start(pause, host="there")
    until(lambda: homes.did() == [1, 2] and psutil.Process(first.pid).status() == psutil.STATUS_STOPPED)
    assert homes.run(document=homes.document(home="other")) == 0
    record = homes.record_of("other")
    os.kill(first.pid, signal.SIGCONT)
    first.join()
    assert first.exitcode == 1
    assert homes.told()["type"] == "LeaseLost"
    assert homes.store_of("home").records() == ()
    assert homes.store_of("home").find(NAME, record.fingerprint) == record


def test_a_server_that_dies_meanwhile_costs_no_work(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots, "TRIES", 1)  # the library below tries several times too
    server = S3Server()
    server.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    bucket = server.bucket()
    homes = Homes(tmp_path, f"s3://{bucket}/rufus")
    try:
        process = homes.start(lambda _, step: until((tmp_path / "gate").exists) if step == 4 else None)
        until(lambda: homes.did() == [1, 2, 3])
        server.stop()
        (tmp_path / "gate").touch()
        process.join()
        assert process.exitcode == 1
        assert homes.told()["type"] == "InfrastructureError"
        assert homes.url in homes.told()["where"]
        assert "the same command goes on" in homes.told()["hint"]
        (record,) = homes.store_of("home").records()
        server.start()
        server.make(bucket)
        assert homes.run() == 0
        assert homes.did() == [1, 2, 3, 4]
        assert homes.run(document=homes.document(home="other")) == 0
        assert homes.record_of("other") == record
    finally:
        for started in homes.started:
            started.kill()
            started.join()
        server.stop()
