"""Jobs of a real Ray cluster of two nodes, killed in several places. Nothing is played."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from rufus_core.errors import ConfigError, InfrastructureError, JobLost, LineageError
from rufus_core.jobs.failure import told_failure
from rufus_core.lineage import Store, store_root
from rufus_core.lineage.lease import lease_file, read_holding
from rufus_core.recipe.graph import build_graph
from rufus_core.settings import ExecutionSettings
from tasks import ray_jobs
from tasks.jobs import PROGRESS, JobCancelled, JobResources
from tasks.launchers import open_launcher
from tasks.ray_jobs import RayJob
from tasks.steps import StepRunner
from tasks.tracking import Tracker
from tests.jobs.miniature import small_recipe
from tests.tasks.base_document import FINGERPRINT, save_base_document
from tests.tasks.ray_nodes import Nodes, two_nodes
from tests.tasks.test_steps import Observer

pytest.importorskip("aiohttp_cors", reason="Ray's Jobs API isn't installed: pip install 'rufus-air[ray]'")
pytestmark = pytest.mark.slow

FOREVER = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).with_name('progress.jsonl').write_text('{}\\n')\n"
FOREVER += "while True: time.sleep(60)"
STEPS = 400  # of a base policy: enough that none of what is done to its job comes too late


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """In a folder with a short name, for the paths of sockets are bounded."""
    with (
        tempfile.TemporaryDirectory(prefix="r") as folder,
        two_nodes(Path(folder)) as nodes,
    ):
        yield nodes


def ray_job(nodes: Nodes, folder: Path, command: Sequence[str] | None = None) -> RayJob:
    execution = ExecutionSettings(launcher="ray", ray_dashboard=nodes.dashboard, threads=1)
    return ray_jobs.RayLauncher(ray_jobs.RayHead(nodes.dashboard), execution, command).job(folder, JobResources())


def nothing() -> None:
    """To prepare."""


def attempts(folder: Path) -> int:
    return int(json.loads((folder / "ray.json").read_text())["attempt"])


def processes(folder: Path) -> list[psutil.Process]:
    """Of the job of a folder, its entry first."""
    found = [each for each in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(each.info["cmdline"] or ())]
    return [each for each in found if "while kill" not in " ".join(each.info["cmdline"])]


class Quiet(Observer):
    def step_progressed(self, step: str, progress: object) -> None: ...


def run_sft(home: Path, **execution: Any) -> str:
    """The digest of the checkpoint that the SFT stage carries forward."""
    recipe = small_recipe()
    settings = recipe.execution.model_copy(update=execution)
    observer = Quiet()
    tracker = Tracker(home, "tiny", observer.warned)
    tracker.run_started("tiny", {})
    with open_launcher(settings) as launcher:
        runner = StepRunner(
            home, settings, tracker, observer, launcher, lambda _: JobResources(), lambda _: nullcontext({})
        )
        for step in build_graph(recipe):
            if step.stage not in (None, "sft") or step.kind == "scores":
                continue
            outcome = runner.run(step)
            assert outcome.status == "completed", outcome.error
            if step.name == "stages/sft/checkpoint":
                break
    tracker.run_finished("FINISHED", {})
    assert outcome.digest is not None
    return outcome.digest


def test_a_stage_has_one_checkpoint_whatever_starts_its_jobs(nodes: Nodes, tmp_path: Path) -> None:
    local = run_sft(tmp_path / "local")
    assert run_sft(tmp_path / "ray", launcher="ray", ray_dashboard=nodes.dashboard) == local
    folders = sorted((tmp_path / "ray" / "jobs").iterdir())
    assert [attempts(folder) for folder in folders] == [1] * len(folders)


def test_a_living_job_is_joined_and_cancelled_for_certain(nodes: Nodes, tmp_path: Path) -> None:
    command = (sys.executable, "-c", FOREVER)
    first, second = ray_job(nodes, tmp_path, command), ray_job(nodes, tmp_path, command)
    assert not first.lives()
    assert first.start(nothing) is False
    assert second.start(nothing) is True
    assert second.lives()
    cancelled = threading.Event()
    with pytest.raises(JobCancelled):
        second.wait(tmp_path / PROGRESS, lambda _: cancelled.set(), cancelled)
    assert not processes(tmp_path)
    assert not first.lives()
    assert attempts(tmp_path) == 1


def test_a_killed_trainer_is_told_by_its_signal_and_a_stopped_one_saves(nodes: Nodes, tmp_path: Path) -> None:
    """Then the third attempt goes on, and there was never more than one at a time."""
    save_base_document(tmp_path, steps=STEPS)
    job = ray_job(nodes, tmp_path)
    killed: list[Any] = []

    def kill(line: Any) -> None:
        if not killed:
            killed.append(line)
            processes(tmp_path)[-1].kill()

    assert job.start(nothing) is False
    assert job.wait(tmp_path / PROGRESS, kill, threading.Event()) == -9
    (tmp_path / PROGRESS).unlink()

    cancelled = threading.Event()
    assert job.start(nothing) is False
    with pytest.raises(JobCancelled):
        job.wait(tmp_path / PROGRESS, lambda _: cancelled.set(), cancelled)
    failure = told_failure(tmp_path)
    assert failure is not None
    assert failure.preempted
    assert job.start(nothing) is False
    assert job.wait(tmp_path / PROGRESS, lambda _: None, threading.Event()) == 0
    assert attempts(tmp_path) == 3
    assert read_holding(lease_file(tmp_path / "store", "base", FINGERPRINT)).token == 3


def test_a_head_that_dies_loses_the_job_and_a_new_one_goes_on(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "SILENT_SECONDS", 15.0)
    save_base_document(tmp_path / "whole", steps=STEPS)
    whole = ray_job(nodes, tmp_path / "whole")
    whole.start(nothing)
    assert whole.wait(tmp_path / "whole" / PROGRESS, lambda _: None, threading.Event()) == 0

    folder = tmp_path / "bereaved"
    save_base_document(folder, steps=STEPS)
    job = ray_job(nodes, folder)
    job.start(nothing)
    killed: list[Any] = []

    def kill(line: Any) -> None:
        if not killed:
            killed.append(line)
            nodes.kill()

    with pytest.raises(JobLost, match="head went away"):
        job.wait(folder / PROGRESS, kill, threading.Event())
    assert job.lives()  # for all that anybody knows
    with pytest.raises(JobLost, match="no Ray head answers"):
        job.start(nothing)
    with pytest.raises(InfrastructureError, match="doesn't confirm"):
        job.cancel(threading.Event())
    nodes.start()
    with pytest.raises(JobLost, match="started anew"):
        job.wait(folder / PROGRESS, lambda _: None, threading.Event())
    assert job.start(nothing) is False
    assert job.wait(folder / PROGRESS, lambda _: None, threading.Event()) == 0
    assert attempts(folder) == 2
    assert read_holding(lease_file(folder / "store", "base", FINGERPRINT)).token == 2
    digests = [Store(each / "store").find("base", FINGERPRINT) for each in (folder, tmp_path / "whole")]
    assert digests[0] is not None
    assert digests[1] is not None
    assert digests[0].digest == digests[1].digest


def test_without_a_head_it_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="no Ray head answers"):
        ray_job(Nodes(tmp_path, 1), tmp_path / "job").start(nothing)
    assert not store_root(tmp_path).exists()


class _Other(BaseHTTPRequestHandler):
    """A server that is no Ray head."""

    def do_GET(self) -> None:
        page = b"<html>hello</html>"
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


def test_what_is_no_head_is_told_and_no_stack_trace(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        one = ray_job(Nodes(tmp_path, server.server_port), tmp_path / "job")
        with pytest.raises(InfrastructureError, match="what answers there is no Ray head"):
            one.start(nothing)
        assert one.lives()  # for all that anybody knows
        server.shutdown()


def test_a_token_that_can_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(ConfigError, match="can't read Ray's token: No such file"):
        ray_job(Nodes(tmp_path, 1), tmp_path / "job")


def test_a_file_of_attempts_that_can_not_be_read_starts_nothing(tmp_path: Path) -> None:
    one = ray_job(Nodes(tmp_path, 1), tmp_path / "job")
    one.folder.mkdir()
    (one.folder / "ray.json").write_text('{"attempt": "many"}')
    with pytest.raises(LineageError, match="can't read which attempt is the last"):
        one.start(nothing)
