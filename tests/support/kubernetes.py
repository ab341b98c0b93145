"""A cluster for a test: its API server as a process that can be killed, and what a test does to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from rufus_core.settings import KubernetesSettings
from tasks.servers import free_port
from tests.support.kubernetes_api import TOKEN


class TestCluster:
    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        (folder / "knobs").mkdir(parents=True)
        self.kubeconfig = folder / "kubeconfig.yaml"
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
                    "users": [{"name": "rufus", "user": {"token": TOKEN}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "rufus"}}],
                }
            )
        )

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.kubernetes_api", str(self.folder), str(self.port)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._server = subprocess.Popen(command, **pipes, start_new_session=True)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        """The API server and the controllers; pods live on."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            for pipe in (self._server.stdin, self._server.stdout):
                assert pipe is not None
                pipe.close()
            self._server = None

    def gone(self) -> None:
        """Wait until it has ended by itself."""
        assert self._server is not None
        self._server.wait()
        self.kill()

    def turn(self, knob: str, value: str | None = "") -> None:
        """Make trouble, or with None no more."""
        file = self.folder / "knobs" / knob
        if value is None:
            file.unlink(missing_ok=True)
            return
        partial = self.folder / f"{knob}.partial"
        partial.write_text(value)
        partial.replace(file)

    def settings(self, home: Path, **changes: Any) -> KubernetesSettings:
        return KubernetesSettings.model_validate(
            {
                "image": "registry.example/rufus-air:1",
                "home_claim": "rufus-home",
                "home_path": str(home),
                "kubeconfig": str(self.kubeconfig),
                "grace_seconds": 20,
                **changes,
            }
        )

    def created(self) -> list[str]:
        """Names of all jobs that were ever made."""
        file = self.folder / "created.txt"
        return file.read_text().split() if file.exists() else []

    def processes(self) -> list[int]:
        """Of pods that were ever begun and live."""
        return [pid for file in self.folder.glob("pods/*/pid") if _lives(pid := int(file.read_text()))]

    def clear(self) -> None:
        """Kill all pods, also one that is being begun; the controllers are dead, so there are no more."""
        for keeper in psutil.process_iter(["cmdline"]):
            if any(part.startswith(f"{self.folder / 'pods'}/") for part in keeper.info["cmdline"] or ()):
                with suppress(psutil.NoSuchProcess):
                    keeper.suspend()
                    for process in keeper.children():
                        os.killpg(process.pid, signal.SIGKILL)
                    keeper.kill()
        for pid in self.processes():  # of keepers that were killed
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def objects(self, kind: str) -> list[dict[str, Any]]:
        return list(json.loads((self.folder / "state.json").read_text())["objects"].get(kind, {}).values())


@contextmanager
def running_cluster(folder: Path) -> Iterator[TestCluster]:
    cluster = TestCluster(folder)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill()
        cluster.clear()


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
