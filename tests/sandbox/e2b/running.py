"""Starts the test server and asks it what was done."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from rufus_core.settings import ExecutionSettings
from tests.sandbox.e2b.machines import require_machines

API_KEY = "e2b_0123456789abcdef"


class Server:
    """A running test server."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def execution(self) -> ExecutionSettings:
        return ExecutionSettings(sandbox="e2b", sandbox_template="python", sandbox_url=self.url, rollout_workers=1)

    def strike(self, *faults: dict[str, Any]) -> None:
        httpx.put(f"{self.url}/test/faults", json=list(faults)).raise_for_status()

    def log(self) -> dict[str, Any]:
        told: dict[str, Any] = httpx.get(f"{self.url}/test/log").raise_for_status().json()
        return told

    def count(self, request: str) -> int:
        """How many requests began so."""
        return sum(line.startswith(request) for line in self.log()["requests"])


@contextmanager
def e2b_server() -> Iterator[Server]:
    """Has its key in the environment. Skips the test where this machine can't have the server's machines."""
    require_machines()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="rufus-e2b-") as folder:
        patch.setenv("E2B_API_KEY", API_KEY)
        command = [sys.executable, "-m", "tests.sandbox.e2b.server", folder]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.stdin.close()
            process.wait(timeout=30)
            process.stdout.close()
