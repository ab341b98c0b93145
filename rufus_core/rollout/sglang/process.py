"""Server processes of this machine: started, waited for until they sample, and dead on leaving."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from rufus_core.errors import ConfigError, InfrastructureError

_POLL_SECONDS = 0.5
_HEALTH_SECONDS = 120.0  # of one check, which samples a token: the first of a server may compile
_TOLD_LINES = 8  # of a log, in an error
_TOLD_CHARACTERS = 1500
_TOLD_SECONDS = 15.0  # between two words of progress


class ServerProcess:
    """One server and all processes that it starts, in a session of their own."""

    def __init__(self, command: Sequence[str], port: int, log: Path) -> None:
        self.url, self.log = f"http://127.0.0.1:{port}", log
        with log.open("ab") as output:
            try:
                self._keeper = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-m", "rufus_core.rollout.sglang.keeper", *command],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise InfrastructureError(f"can't start a server: {error.strerror}", where=str(log)) from error

    def death(self) -> str | None:
        """How it died, with the last lines of its log; None while it lives."""
        code = self._keeper.poll()
        if code is None:
            return None
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TOLD_LINES:]
        return f"it ended with code {code}; its last words:\n" + "\n".join(lines)[-_TOLD_CHARACTERS:]

    def stop(self) -> None:
        """Kill it and all it started."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()

    def wait_ready(self, deadline: float, tell: Callable[[str], None]) -> None:
        """Until it has sampled a token. Raises InfrastructureError where it dies before, or isn't ready in time."""
        started = told = time.monotonic()
        while not self._samples():
            if reason := self.death():
                raise InfrastructureError(f"an SGLang server didn't start: {reason}", where=str(self.log))
            now = time.monotonic()
            if now > deadline:
                raise InfrastructureError(
                    f"an SGLang server isn't ready after {now - started:.0f} s",
                    where=str(self.log),
                    hint="raise execution.sglang.start_seconds, or see what it waits for",
                )
            if now - told > _TOLD_SECONDS:
                tell(f"waiting for SGLang at {self.url}: {now - started:.0f} s")
                told = now
            time.sleep(_POLL_SECONDS)

    def _samples(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health_generate", timeout=_HEALTH_SECONDS).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def running_servers(
    command: Callable[[int, int], list[str]], count: int, logs: Path, seconds: float, tell: Callable[[str], None]
) -> Iterator[list[ServerProcess]]:
    """Start servers side by side and yield them when all are ready. `command` makes one's words from its port and its
    index.

    Raises:
        InfrastructureError: one of them didn't start.
    """
    logs.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        servers = []
        for index, port in enumerate(_free_ports(count)):
            server = ServerProcess(command(port, index), port, logs / f"sglang-{index}.log")
            stack.callback(server.stop)
            servers.append(server)
        for server in servers:
            server.wait_ready(deadline, tell)
        yield servers


def require_sglang(python: str | None) -> None:
    """Raises ConfigError where this interpreter has no SGLang."""
    interpreter = python or sys.executable
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    try:
        found = subprocess.run([interpreter, "-c", probe], capture_output=True, check=False).returncode == 0  # noqa: S603
    except OSError:
        found = False
    if not found:
        raise ConfigError(
            f"there is no SGLang for {interpreter}",
            where="execution.sglang.python",
            hint="pip install 'rufus-air[sglang]' on a machine with GPUs, or name the python of an environment with it",
        )


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now. SGLang takes no socket that is open already."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in listeners]
