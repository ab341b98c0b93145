"""Servers die with whoever started them, in whatever way that one dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rufus_core.errors import InfrastructureError
from tasks.servers import Server, free_port

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def test_a_server_dies_when_its_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from tasks.servers import Server\n"
        "server = Server('test', sys.argv[2:], 1, '/', Path(sys.argv[1]))\n"
        "server.__enter__()\n"
        "print(server._guard.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log"), *SLEEPER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        guard = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    guard.wait(timeout=30)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]


def test_a_server_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    server = Server("test", [sys.executable, "-c", "print('no')"], free_port(), "/", log)
    with server, pytest.raises(InfrastructureError, match=r"the test server did not start .*server\.log"):
        server.ready()
    assert log.read_text() == "no\n"


def test_a_server_that_is_killed_is_started_again(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with Server("test", command, port, "/", tmp_path / "log") as server:
        server.ready()
        assert server._guard is not None
        guard = psutil.Process(server._guard.pid)
        (first,) = guard.children()
        first.kill()
        first.wait(timeout=30)
        server.ready()
        (second,) = guard.children()
        assert second.pid != first.pid
    assert not second.is_running()
