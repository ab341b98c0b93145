"""Server processes: none outlives its owner, a death is told with its last words. Small programs stand for SGLang."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rufus_core.errors import InfrastructureError
from rufus_core.rollout.sglang.process import ServerProcess, running_servers

_HEALTHY = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("child", child.pid, flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
_BROKEN = "import sys; print('loading'); sys.exit('out of memory')"
_OWNER = """
import sys, time
from pathlib import Path
from rufus_core.rollout.sglang.process import running_servers
with running_servers(lambda port, _: [sys.executable, "-c", sys.argv[2], str(port)], 1, Path(sys.argv[1]), 60, print):
    print("ready", flush=True)
    time.sleep(1000)
"""
_PATIENCE_SECONDS = 60.0


def healthy(port: int, _index: int) -> list[str]:
    return [sys.executable, "-c", _HEALTHY, str(port)]


def child_of(log: Path) -> psutil.Process:
    [line] = [line for line in log.read_text().splitlines() if line.startswith("child")]
    return psutil.Process(int(line.split()[1]))


def until_dead(*processes: psutil.Process) -> None:
    _, alive = psutil.wait_procs(processes, timeout=_PATIENCE_SECONDS)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


def test_leaving_ends_servers_and_what_they_started(tmp_path: Path) -> None:
    with running_servers(healthy, 2, tmp_path, _PATIENCE_SECONDS, print) as servers:
        assert len({server.url for server in servers}) == 2
        assert [server.death() for server in servers] == [None, None]
        children = [child_of(server.log) for server in servers]
    until_dead(*children)


def test_a_server_that_cannot_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(
            InfrastructureError, match="ended with code 1; its last words:\nloading\nout of memory"
        ) as caught,
        running_servers(lambda *_: [sys.executable, "-u", "-c", _BROKEN], 1, tmp_path, _PATIENCE_SECONDS, print),
    ):
        pass
    assert str(tmp_path / "sglang-0.log") in str(caught.value)


def test_one_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    with (
        pytest.raises(InfrastructureError, match="isn't ready after 0 s"),
        running_servers(lambda *_: [sys.executable, "-c", "input()"], 1, tmp_path, 0.0, print),
    ):
        pass


def test_what_a_server_started_dies_with_it(tmp_path: Path) -> None:
    with running_servers(healthy, 1, tmp_path, _PATIENCE_SECONDS, print) as [server]:
        child = child_of(server.log)
        child.parent().kill()  # type: ignore[union-attr]
        until_dead(child)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (death := server.death()) is None:
            assert time.monotonic() < deadline
        assert "it ended with code" in death


def test_servers_die_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path), _HEALTHY], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    child = child_of(tmp_path / "sglang-0.log")
    server = child.parent()
    assert server is not None
    owner.kill()
    owner.wait()
    owner.stdout.close()
    until_dead(child, server)


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    server = ServerProcess(["/nowhere/python"], 1, tmp_path / "log")
    with pytest.raises(InfrastructureError, match="No such file or directory"):
        server.wait_ready(time.monotonic() + _PATIENCE_SECONDS, print)
    server.stop()
