"""GPUs are one job's at a time, by Prefect's leases, as long as its run or the job itself lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from uuid import UUID

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.limits import gpus_held, limit_name, num_gpus
from flows.slot_keeper import LEASE_SECONDS, RENEWING
from rufus_core.errors import ConfigError
from rufus_core.settings import ComputeSettings
from tasks import servers
from tasks.children import Child
from tasks.jobs import JobCancelled
from tasks.launcher import LocalJob
from tests.flows.held import RECIPE, STEP
from tests.flows.test_recipe import ROOT

NEEDED = num_gpus(STEP)
LIMIT = limit_name("h200")
SOON = 0.2  # seconds between renewals
WAIT_SECONDS = 120.0  # until a test gives up


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[str]:
    with servers.prefect_server(home, servers.free_port()) as server:
        server.ready()
        yield f"{server.url}/api"


@pytest.fixture
def api(server: str) -> Iterator[str]:
    """A server whose GPUs are free, and those of one step."""
    with temporary_settings({PREFECT_API_URL: server}):
        make_room(NEEDED)
        assert taken() == 0
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A job's. Whatever a test does, no keeper is left once its run and job are gone."""
    folder = tmp_path / "job"
    yield folder
    folder.mkdir(exist_ok=True)
    (folder / "end").touch()
    until(lambda: not keepers(folder))


def make_room(slots: int) -> None:
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(LIMIT, slots)


def taken() -> int:
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(LIMIT).active_slots


def leases(home: Path) -> dict[UUID, datetime]:
    """When each ends."""
    files = (home / "prefect" / "concurrency_leases").glob("????????-*.json")
    return {UUID(file.stem): datetime.fromisoformat(json.loads(file.read_text())["expiration"]) for file in files}


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def keepers(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "flows.slot_keeper" in words and str(folder) in words:
            found.append(process)
    return found


@contextmanager
def run(folder: Path, api: str) -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own, killed in the end. Its job lives on."""
    command = [sys.executable, "-m", "tests.flows.held", str(folder), str(SOON)]
    env = {**os.environ, "PREFECT_API_URL": api, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield process
        process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def start_and_kill(folder: Path, api: str) -> None:
    """A run that is killed while its job goes on, which its keeper has noticed."""
    with run(folder, api) as first:
        assert said(first) == "started"
    until(lambda: any(folder.glob("*.slots")))


def test_a_step_needs_the_gpus_of_its_stage_and_data_none() -> None:
    assert NEEDED == 64
    assert num_gpus(replace(STEP, compute=None)) == 0
    assert num_gpus(replace(STEP, compute=ComputeSettings())) == 0


def test_a_step_without_gpus_asks_no_server(folder: Path) -> None:
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}),
        gpus_held(RECIPE, replace(STEP, compute=None), folder, threading.Event(), pytest.fail),
    ):
        pass


def test_a_second_job_waits_until_the_first_gives_its_gpus_back(api: str, folder: Path, tmp_path: Path) -> None:
    cancelled = threading.Event()
    told: list[str] = []

    def stop_when_it_waits(warning: str) -> None:
        told.append(warning)
        cancelled.set()

    with gpus_held(RECIPE, STEP, folder, threading.Event(), pytest.fail):
        assert taken() == NEEDED
        with (
            pytest.raises(JobCancelled),
            gpus_held(RECIPE, STEP, tmp_path / "other", cancelled, stop_when_it_waits),
        ):
            pytest.fail("two jobs on the same GPUs")
        assert taken() == NEEDED
    assert told == [f"{STEP.name} waits until {NEEDED} slots of {LIMIT} are free"]
    assert taken() == 0
    with gpus_held(RECIPE, STEP, folder, threading.Event(), pytest.fail):
        assert taken() == NEEDED
    assert taken() == 0
    assert keepers(folder) == keepers(tmp_path / "other") == []


def test_two_jobs_run_at_once_where_there_is_room_for_both(api: str, folder: Path, tmp_path: Path) -> None:
    make_room(2 * NEEDED)
    with (
        gpus_held(RECIPE, STEP, folder, threading.Event(), pytest.fail),
        gpus_held(RECIPE, STEP, tmp_path / "other", threading.Event(), pytest.fail),
    ):
        assert taken() == 2 * NEEDED
    assert taken() == 0


def test_more_gpus_than_there_are_is_an_error_and_no_wait_for_ever(api: str, folder: Path) -> None:
    make_room(8)
    with (
        pytest.raises(ConfigError, match=rf"needs {NEEDED} GPUs, and the limit {LIMIT} is 8 .*limits.yaml"),
        gpus_held(RECIPE, STEP, folder, threading.Event(), pytest.fail),
    ):
        pytest.fail("it has no GPUs")


def test_a_lease_that_lapsed_is_taken_anew_and_a_job_is_warned_when_others_were_faster(
    home: Path, api: str, folder: Path
) -> None:
    warned: SimpleQueue[str] = SimpleQueue()
    with (
        gpus_held(RECIPE, STEP, folder, threading.Event(), warned.put, SOON),
        get_client(sync_client=True) as client,
    ):
        (first,) = leases(home)
        client.release_concurrency_slots_with_lease(first)
        until(lambda: len(leases(home)) == 1 and first not in leases(home))
        assert warned.empty()
        (second,) = leases(home)
        make_room(NEEDED + 1)
        client.increment_concurrency_slots([LIMIT], 1, "concurrency")  # somebody else's
        make_room(NEEDED)
        client.release_concurrency_slots_with_lease(second)
        assert f"the GPUs of {STEP.name} were given to another run" in warned.get(timeout=WAIT_SECONDS)
        client.release_concurrency_slots([LIMIT], 1, 1.0)
        until(lambda: taken() == NEEDED)
    assert taken() == 0


def test_a_job_is_warned_when_nobody_holds_its_gpus_any_more(home: Path, api: str, folder: Path) -> None:
    warned: SimpleQueue[str] = SimpleQueue()
    with gpus_held(RECIPE, STEP, folder, threading.Event(), warned.put):
        (keeper,) = keepers(folder)
        keeper.kill()
        assert "the process that held them ended" in warned.get(timeout=WAIT_SECONDS)
    (lease,) = leases(home)
    with get_client(sync_client=True) as client:
        client.release_concurrency_slots_with_lease(lease)


def test_a_job_that_outlives_its_run_keeps_its_gpus_until_it_ends(home: Path, api: str, folder: Path) -> None:
    start_and_kill(folder, api)
    (lease,), (until_then,) = leases(home).keys(), leases(home).values()
    until(lambda: leases(home)[lease] > until_then)  # renewed, with nobody but the job alive
    assert taken() == NEEDED
    (folder / "end").touch()
    until(lambda: taken() == 0)
    until(lambda: not keepers(folder))
    assert leases(home) == {}
    assert not any(folder.glob("*.slots"))


def test_a_run_that_comes_back_goes_on_with_the_gpus_of_the_job_it_joins(home: Path, api: str, folder: Path) -> None:
    start_and_kill(folder, api)
    before = leases(home).keys()
    with run(folder, api) as second:
        assert said(second) == "joined"
        until(lambda: len(keepers(folder)) == 1)  # the first one's has gone, and left it the lease
        assert leases(home).keys() == before
        assert taken() == NEEDED
    until(lambda: any(folder.glob("*.slots")))
    with run(folder, api) as third:
        assert said(third) == "joined"
        assert leases(home).keys() == before
        (folder / "end").touch()
        assert said(third) == "over"
        assert taken() == 0


def test_gpus_that_a_dead_runs_keeper_renews_just_now_are_waited_for_without_a_word(api: str, folder: Path) -> None:
    """For that moment it offers them to nobody, and they are taken."""
    folder.mkdir()
    renewing = folder / RENEWING
    renewing.touch()
    warned: SimpleQueue[str] = SimpleQueue()
    with get_client(sync_client=True) as client:
        answer = client.increment_concurrency_slots_with_lease([LIMIT], NEEDED, "concurrency", LEASE_SECONDS)

    def offer_when_asked() -> None:
        until(lambda: any(keeper.net_connections() for keeper in keepers(folder)))
        (folder / f"{answer.json()['lease_id']}.slots").touch()
        renewing.unlink()

    dead = threading.Thread(target=offer_when_asked)
    dead.start()
    with gpus_held(RECIPE, STEP, folder, threading.Event(), warned.put, SOON):
        dead.join()
        assert taken() == NEEDED
    assert warned.empty()
    assert taken() == 0


def never(log: object) -> Child:
    raise AssertionError


def test_gpus_of_a_run_and_job_that_were_killed_are_free(api: str, folder: Path) -> None:
    start_and_kill(folder, api)
    handle = LocalJob(folder, never).handle()
    assert handle is not None
    psutil.Process(handle.pid).kill()
    until(lambda: taken() == 0)


def test_a_keeper_whose_server_is_gone_ends_with_the_job(tmp_path: Path, folder: Path) -> None:
    with servers.prefect_server(tmp_path / "home", servers.free_port()) as server:
        server.ready()
        start_and_kill(folder, f"{server.url}/api")
    (keeper,) = keepers(folder)
    assert LocalJob(folder, never).handle() is not None
    (folder / "end").touch()
    until(lambda: not keeper.is_running())
