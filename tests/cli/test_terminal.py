"""Ctrl-C in a terminal, which is a real one, during `rufus run`."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rufus_core.lineage.lease import read_holding
from rufus_core.lineage.process import ProcessId
from tests.crash.home import POLL_SECONDS, CrashHome
from tests.jobs.miniature import small_overrides

pytestmark = pytest.mark.slow

CTRL_C = b"\x03"
# A job has for ever to end by itself: whatever ends it sooner is what was typed.
RUFUS = "import tasks.launcher as l; l.GRACE_SECONDS = 1e9; from rufus_core.cli.main import main; main()"
ENDLESS = "base.pretrain.steps=1000000"


class Terminal:
    """A terminal in which `rufus run --until base` was typed, with a base policy that is never through."""

    def __init__(self, folder: Path) -> None:
        self.home = CrashHome(folder, ())
        words = ["run", "--until", "base", *(w for change in (*small_overrides(), ENDLESS) for w in ("--set", change))]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
        env = {**kept, "RUFUS_HOME": str(folder), "TERM": "xterm", "COLUMNS": "200"}
        self._keyboard, screen = pty.openpty()
        self.run = subprocess.Popen(
            [sys.executable, "-c", RUFUS, *words], env=env, preexec_fn=lambda: os.login_tty(screen)
        )
        os.close(screen)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def type(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def ended(self) -> tuple[int, str]:
        """The exit code, and all that was shown."""
        code = self.run.wait()
        self._reader.join()
        return code, self._shown.decode()

    def until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            assert self.run.poll() is None, self._shown.decode()
            time.sleep(POLL_SECONDS)

    def trains(self) -> bool:
        return any(file.stat().st_size for file in self.home.folder.glob("jobs/base.*/progress.jsonl"))

    def job(self) -> ProcessId:
        (file,) = self.home.folder.glob("store/leases/base.*.json")
        owner = read_holding(file).owner
        assert owner is not None
        return owner

    def states(self) -> list[str]:
        return [path.name for path in self.home.folder.glob("store/attempts/base.*/state/*")]

    def close(self) -> None:
        self.run.kill()
        for process in self.home.processes():
            process.kill()
        self.ended()
        os.close(self._keyboard)

    def _read(self) -> None:
        while True:
            try:
                self._shown += os.read(self._keyboard, 4096)
            except OSError:  # nobody has the terminal open any more
                return


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def is_told_to_stop(pid: int) -> bool:
    """Whether a SIGTERM waits for a process that is paused."""
    found = re.search(r"^ShdPnd:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return bool(int(found[1], 16) & 1 << (signal.SIGTERM - 1))


def assert_stopped(terminal: Terminal, job: ProcessId) -> None:
    code, shown = terminal.ended()
    assert code == 130
    assert "Stopped. Finished steps are kept: type `" in shown
    assert "Traceback" not in shown
    assert job.find() is None
    assert list(terminal.home.processes()) == []


def test_the_first_ctrl_c_lets_the_job_save_its_state(terminal: Terminal) -> None:
    terminal.until(terminal.trains)
    job = terminal.job()
    terminal.type(CTRL_C)
    assert_stopped(terminal, job)
    (log,) = terminal.home.folder.glob("jobs/base.*/job.log")
    (state,) = terminal.states()
    assert f"stopped after {state.replace('-', ' ')} of 1000000" in log.read_text()


def test_the_second_ctrl_c_ends_a_job_at_once(terminal: Terminal) -> None:
    """The job is paused, so that the first one alone would never end."""
    terminal.until(terminal.trains)
    job = terminal.job()
    os.kill(job.pid, signal.SIGSTOP)
    terminal.until(lambda: psutil.Process(job.pid).status() == psutil.STATUS_STOPPED)
    terminal.type(CTRL_C)
    terminal.until(lambda: is_told_to_stop(job.pid))
    terminal.type(CTRL_C)
    assert_stopped(terminal, job)
