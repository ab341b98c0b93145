"""Deployed runs with a real worker: retried from everywhere, killed in every way. Jobs are those of `fake_job`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.limits import limit_name
from flows.orphans import end_tasks_of_dead_runs
from tasks import servers
from tests.flows.test_recipe import NAMES, ROOT, graph, jobs_started, run, statuses

WAIT_SECONDS = 240.0
FILE = """
name: tests
definitions: {work_pool_types: {tests: process}}
deployments:
  - name: tests
    entrypoint: tests.flows.tiny.rufus_tiny
    work_pool: {name: tests, job_variables: {env: {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: "30"}}}
"""

pytestmark = pytest.mark.slow


class Prefect:
    """A server over a home, with the deployment `rufus-tiny/tests` and a worker for it."""

    def __init__(self, home: Path, api: str) -> None:
        self.home, self.api = home, api
        self.env = {
            **os.environ,
            **servers.prefect_environment(home),
            "PREFECT_API_URL": api,
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_LOGGING_LEVEL": "INFO",
            "RUFUS_HOME": str(home),
            "PYTHONPATH": str(ROOT),
        }

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", *words], env=self.env, capture_output=True, text=True, cwd=ROOT)

    def deploy(self) -> None:
        deployed = self.command("rufus_core.cli.main", "deploy", "--file", str(self.home / "prefect.yaml"))
        assert deployed.returncode == 0, deployed.stderr

    def worker(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "tests"]
        with (self.home / "worker.log").open("ab") as log:
            return subprocess.Popen(command, env=self.env, stdout=log, stderr=log, cwd=self.home)

    def start(self, gpus: bool = False, **config: Any) -> str:
        """A new flow run; its id."""
        deployment = httpx.get(f"{self.api}/deployments/name/rufus-tiny/tests").json()["id"]
        parameters = {"config": config, "gpus": gpus}
        answer = httpx.post(f"{self.api}/deployments/{deployment}/create_flow_run", json={"parameters": parameters})
        return str(answer.raise_for_status().json()["id"])

    def until(self, what: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := what()):
            if time.monotonic() > deadline:
                pytest.fail((self.home / "worker.log").read_text()[-3000:])
            time.sleep(0.2)
        return found

    def ended(self, flow_run: str) -> str:
        """The name of its state, once it is final."""

        def final() -> str | None:
            state = httpx.get(f"{self.api}/flow_runs/{flow_run}").json()["state"]
            return state["name"] if state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None

        return str(self.until(final))

    def logged(self, flow_run: str, since: datetime) -> list[str]:
        chosen = {"logs": {"flow_run_id": {"any_": [flow_run]}, "timestamp": {"after_": since.isoformat()}}}
        return [each["message"].strip() for each in httpx.post(f"{self.api}/logs/filter", json=chosen).json()]

    def tasks(self, flow_run: str) -> dict[str, str]:
        """States of its newest task runs by name, once the server has all of them."""
        chosen = {"flow_runs": {"id": {"any_": [flow_run]}}, "sort": "EXPECTED_START_TIME_ASC"}
        tasks = httpx.post(f"{self.api}/task_runs/filter", json=chosen).json()
        return {task["name"]: task["state_name"] for task in tasks}

    def running(self) -> list[str]:
        query = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}}
        return [each["id"] for each in httpx.post(f"{self.api}/flow_runs/filter", json=query).json()]

    def process_of(self, worker: subprocess.Popen[bytes]) -> psutil.Process:
        """The flow that the worker started."""
        (flow,) = (p for p in psutil.Process(worker.pid).children(recursive=True) if "prefect" in " ".join(p.cmdline()))
        return flow


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    home = tmp_path_factory.mktemp("home")
    _write_files(home)
    with servers.prefect_server(home, servers.free_port()) as server:
        server.ready()
        prefect = Prefect(home, f"{server.url}/api")
        prefect.deploy()
        yield prefect


def _write_files(home: Path) -> None:
    (home / "prefect.yaml").write_text(FILE)
    (home / "deployments").mkdir()
    (home / "deployments" / "limits.yaml").write_text("gpus: {h200: 64}\n")
    (home / "deployments" / "automations.yaml").write_text((ROOT / "deployments" / "automations.yaml").read_text())


@pytest.fixture
def worker(prefect: Prefect) -> Iterator[subprocess.Popen[bytes]]:
    with prefect.worker() as worker:
        yield worker
        worker.send_signal(signal.SIGINT)


def test_a_failed_step_is_retried_alone_from_the_command_the_page_and_rufus_run(
    prefect: Prefect, worker: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = prefect.home / "there"
    config = {"need": str(there), "text": "t"}
    flow_run = prefect.start(**config)
    assert prefect.ended(flow_run) == "Failed"
    assert jobs_started(prefect.home) == list(NAMES)

    assert "scheduled for retry" in prefect.command("prefect", "flow-run", "retry", flow_run).stdout
    prefect.until(lambda: jobs_started(prefect.home) == [*NAMES, NAMES[2]])
    assert prefect.ended(flow_run) == "Failed"

    there.touch()
    state = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True}  # as the page's button asks
    httpx.post(f"{prefect.api}/flow_runs/{flow_run}/set_state", json=state).raise_for_status()
    prefect.until(lambda: jobs_started(prefect.home) == [*NAMES, NAMES[2], NAMES[2]])
    assert prefect.ended(flow_run) == "Completed"

    monkeypatch.setenv("PREFECT_API_URL", prefect.api)
    outcome, _ = run(prefect.home, graph(**config))
    assert set(statuses(outcome).values()) == {"reused"}
    assert jobs_started(prefect.home) == [*NAMES, NAMES[2], NAMES[2]]


def test_a_killed_flow_is_crashed_by_its_worker_and_its_retry_joins_the_job(
    prefect: Prefect, worker: subprocess.Popen[bytes]
) -> None:
    go = prefect.home / "go"
    flow_run = prefect.start(wait_for=str(go), text="joined")
    before = prefect.until(lambda: _started(prefect.home, '"wait_for"') and jobs_started(prefect.home))
    prefect.process_of(worker).kill()
    assert prefect.ended(flow_run) == "Crashed"
    since = datetime.now(UTC)
    prefect.command("prefect", "flow-run", "retry", flow_run)
    prefect.until(lambda: f"{NAMES[2]}: started" in prefect.logged(flow_run, since))
    go.touch()
    # Half a minute after the death, the worker says once more that the run crashed, also over a retry that runs.
    prefect.until(lambda: prefect.ended(flow_run) == "Completed")
    assert prefect.until(lambda: prefect.tasks(flow_run).get("Math: train") == "Joined")
    assert jobs_started(prefect.home) == before


def test_kill_9_of_worker_and_flow_leaves_nothing_running_and_only_the_job_s_gpus_taken(prefect: Prefect) -> None:
    rules = prefect.home / "deployments" / "automations.yaml"
    automations = yaml.safe_load(rules.read_text())
    automations["automations"][0]["trigger"]["within"] = 30  # one heartbeat, so that the test takes no minutes
    rules.write_text(json.dumps(automations))
    prefect.deploy()
    limit = f"{prefect.api}/v2/concurrency_limits/{limit_name('h200')}"
    with prefect.worker() as worker:
        flow_run = prefect.start(gpus=True, hang="for ever", text="never")
        job = prefect.until(lambda: _started(prefect.home, '"for ever"'))
        assert httpx.get(limit).json()["active_slots"] == 64
        flow = prefect.process_of(worker)
        for process in (worker, flow):
            process.kill()
    assert prefect.ended(flow_run) == "Crashed"
    assert httpx.get(f"{prefect.api}/flow_runs/{flow_run}").json()["state"]["message"].startswith("no heartbeat")
    assert prefect.running() == []
    assert prefect.tasks(flow_run)["Math: train"] == "Running"
    with temporary_settings({PREFECT_API_URL: prefect.api}):
        end_tasks_of_dead_runs()  # which the next run does
    assert prefect.tasks(flow_run)["Math: train"] == "Crashed"
    assert httpx.get(limit).json()["active_slots"] == 64
    os.kill(job, signal.SIGKILL)  # it outlives its run, for a retry to join
    prefect.until(lambda: httpx.get(limit).json()["active_slots"] == 0)


def _started(home: Path, what: str) -> int | None:
    """The pid of the living job whose document says this, once it made progress."""
    for document in (home / "jobs").glob("*/document.json"):
        folder = document.parent
        if what in document.read_text() and (folder / "progress.jsonl").exists():
            pid = json.loads((folder / "handle.json").read_text())["pid"]
            return int(pid) if psutil.pid_exists(pid) else None
    return None
