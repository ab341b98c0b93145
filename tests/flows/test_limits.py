"""GPUs are one job's at a time, by Prefect's leases."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.limits import gpus_held, limit_name, num_gpus
from rufus_core.errors import ConfigError
from rufus_core.recipe.graph import Step
from rufus_core.recipe.load import load_recipe
from tasks import servers
from tasks.launcher import JobCancelled

RECIPE = load_recipe("rufus_air", "h200")
STEP = Step("stages/reasoning_rl/train", "training", "train", {}, stage="reasoning_rl")
NEEDED = num_gpus(RECIPE, STEP)
LIMIT = limit_name("h200")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def api(home: Path) -> Iterator[None]:
    with servers.prefect_server(home, servers.free_port()) as server:
        server.ready()
        with temporary_settings({PREFECT_API_URL: f"{server.url}/api"}):
            yield


class StoppedWhileWaiting(threading.Event):
    """Set as soon as somebody waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


def taken() -> int:
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(LIMIT).active_slots


def test_a_step_needs_the_gpus_of_its_stage_and_data_none() -> None:
    assert NEEDED == 64
    assert num_gpus(RECIPE, replace(STEP, kind="problems")) == 0
    assert num_gpus(load_recipe(), STEP) == 0


def test_a_step_without_gpus_asks_no_server() -> None:
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}),
        gpus_held(load_recipe(), STEP, threading.Event(), pytest.fail),
    ):
        pass


def test_a_second_job_waits_until_the_first_gives_its_gpus_back(api: None) -> None:
    with gpus_held(RECIPE, STEP, threading.Event(), pytest.fail):
        assert taken() == NEEDED
        with pytest.raises(JobCancelled), gpus_held(RECIPE, STEP, StoppedWhileWaiting(), pytest.fail):
            pytest.fail("two jobs on the same GPUs")
        assert taken() == NEEDED
    assert taken() == 0
    with gpus_held(RECIPE, STEP, threading.Event(), pytest.fail):
        assert taken() == NEEDED


def test_a_job_is_warned_when_its_lease_is_gone(home: Path, api: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.limits.RENEW_SECONDS", 0.05)
    warned: SimpleQueue[str] = SimpleQueue()
    with gpus_held(RECIPE, STEP, threading.Event(), warned.put), get_client(sync_client=True) as client:
        (lease,) = (UUID(each.stem) for each in (home / "prefect" / "concurrency_leases").glob("????????-*.json"))
        client.release_concurrency_slots_with_lease(lease)
        assert f"the GPUs of {STEP.name} may be given to another run" in warned.get(timeout=60)
    assert taken() == 0


def test_two_jobs_run_at_once_where_there_is_room_for_both(api: None) -> None:
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(LIMIT, 2 * NEEDED)
    with (
        gpus_held(RECIPE, STEP, threading.Event(), pytest.fail),
        gpus_held(RECIPE, STEP, threading.Event(), pytest.fail),
    ):
        assert taken() == 2 * NEEDED
    assert taken() == 0


def test_more_gpus_than_there_are_is_an_error_and_no_wait_for_ever(api: None) -> None:
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(LIMIT, 8)
    with (
        pytest.raises(ConfigError, match=rf"needs {NEEDED} GPUs, and the limit {LIMIT} is 8 .*limits.yaml"),
        gpus_held(RECIPE, STEP, threading.Event(), pytest.fail),
    ):
        pytest.fail("it has no GPUs")
