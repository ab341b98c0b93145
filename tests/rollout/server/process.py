"""`rufus serve` as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

PATIENCE_SECONDS = 60.0


class ServerProcess:
    """Entering waits until it has said where it is. Leaving it by Ctrl-C must end it in order, without a complaint."""

    def __init__(self, checkpoint: Path, *options: str) -> None:
        self._words = ["serve", str(checkpoint), "--port", "0", "--threads", "1", *options]
        self.url = ""
        self.said = ""
        self._interrupted = False

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "rufus_core.cli.main", *self._words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        while "Ctrl-C" not in self.said:
            line = self._process.stdout.readline()
            assert line, self._process.communicate()[1]
            self.said += line
        self.url = self.said.splitlines()[1].rpartition(" ")[2]
        return self

    def interrupt(self) -> None:
        """Ctrl-C; leaving sends another one only where none was."""
        self._process.send_signal(signal.SIGINT)
        self._interrupted = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._interrupted:
            self.interrupt()
        out, complaints = self._process.communicate(timeout=PATIENCE_SECONDS)
        assert (self._process.returncode, out, complaints) == (0, "Stopped.\n", "")

    def load(self) -> dict[str, Any]:
        state: dict[str, Any] = httpx.get(f"{self.url}/server_info").json()["internal_states"][0]
        return state

    def until(self, **wanted: Any) -> dict[str, Any]:
        """Poll the server's counters until they have these values."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            load = self.load()
            if {name: load[name] for name in wanted} == wanted:
                return load
            assert time.monotonic() < deadline, f"waited for {wanted}, found {load}"
            time.sleep(0.01)

    def assert_quiet(self) -> None:
        """Nothing runs, waits or is lost."""
        load = self.until(num_running=0, num_waiting=0, paused=False)
        assert load["num_added"] == load["num_finished"] + load["num_aborted"]

    def resources(self) -> tuple[int, int]:
        """Its open file descriptors and threads."""
        process = psutil.Process(self._process.pid)
        return process.num_fds(), process.num_threads()
