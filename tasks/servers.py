"""Starts and stops the servers that show a run: Prefect and MLflow, on loopback, over the run's home."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from rufus_core.errors import InfrastructureError, PortInUse
from tasks.databases import first_use, home_database, mlflow_database, prefect_database, reason, without_password

HOST = "127.0.0.1"
START_SECONDS = 120.0  # a first start migrates a fresh database, and machines are loaded


@dataclass
class Server:
    """A server process. Entering starts it without waiting; `ready` waits; leaving stops it and confirms."""

    name: str
    command: list[str]
    port: int
    health: str  # path that answers 200 once the server serves
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    database: str | None = None  # its URL, where others may open it too
    _guard: subprocess.Popen[bytes] | None = None
    _opening: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._open()
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "tasks.guard", *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is the owner's business
                env={**os.environ, **self.env},
            )
        return self

    def ready(self) -> None:
        """Wait until the server answers. Raises InfrastructureError when it ended or stays silent."""
        with self._opening:
            self._wait()

    def _open(self) -> None:
        """Have the database for this server until it is ready: it may create the tables."""
        if self.database is None:
            return
        from sqlalchemy.exc import SQLAlchemyError

        try:
            self._opening.enter_context(first_use(self.database))
        except SQLAlchemyError as error:
            raise InfrastructureError(
                f"the database of the {self.name} server doesn't answer: {reason(error)}",
                where=without_password(self.database),
                hint="start it, or correct its URL; nothing has run yet",
            ) from error

    def _wait(self) -> None:
        assert self._guard is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._guard.poll() is None:
            try:
                if httpx.get(self.url + self.health, timeout=5.0).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        raise InfrastructureError(f"the {self.name} server did not start", hint=f"its output is in {self.log}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._opening:
            if self._guard is not None and self._guard.stdin is not None:
                self._guard.stdin.close()
                self._guard.wait()


def prefect_environment(home: Path) -> dict[str, str]:
    """Settings of Prefect's client and server alike: everything it keeps lives under the run's home."""
    return {
        "PREFECT_HOME": str(home.absolute() / "prefect"),
        "PREFECT_PROFILES_PATH": str(home.absolute() / "prefect" / "profiles.toml"),
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the terminal is the progress display's
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_CLI_PROMPT": "false",
        # On the disk: leases in the server's memory are forgotten with it, and their slots would stay taken for ever.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }


def prefect_server(home: Path, port: int) -> Server:
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    env = {**prefect_environment(home), "PREFECT_UI_API_URL": f"http://{HOST}:{port}/api"}
    return Server("Prefect", command, port, "/api/health", home / "prefect" / "server.log", env, prefect_database())


def mlflow_server(home: Path, port: int) -> Server:
    folder = home.absolute() / "mlflow"
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    database = mlflow_database()
    env = {
        "MLFLOW_BACKEND_STORE_URI": database or f"sqlite:///{home_database(folder)}",  # no password in a command line
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # its job workers take 2.5 GB and serve nothing of ours
    }
    return Server("MLflow", command, port, "/health", folder / "server.log", env, database)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def require_port(port: int, option: str) -> None:
    """Raises PortInUse when nothing can bind to `port` on loopback."""
    if not port_is_free(port):
        raise PortInUse(f"port {port} is taken by another program", hint=f"choose another one with {option}")


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
