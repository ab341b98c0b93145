"""A PostgreSQL server for tests, as Debian packages it: Prefect wants `pg_trgm`, which no wheel ships."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rufus_core.sandbox.isolation import find_bubblewrap
from tasks.servers import HOST, free_port
from tests.sandbox.real import require_isolation

PASSWORD = "a-password-that-nobody-may-see"
LOOK_SECONDS = 0.05


def binaries() -> Path | None:
    """The folder of the newest server's programs, of which Debian puts only the clients' on PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class PostgresServer:
    """A server with its data in `folder`, on one port of 127.0.0.1, for a user with a password."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._data, self._log = folder / "data", folder / "postgres.log"
        self._process: subprocess.Popen[bytes] | None = None
        secret = folder / "password"
        secret.write_text(PASSWORD)
        ready = ["-U", "rufus", "-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--no-sync"]
        subprocess.run(self._command("initdb", "-D", str(self._data), *ready), check=True, capture_output=True)

    @property
    def runs(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        assert self._process is None
        options = ["-D", str(self._data), "-p", str(self.port), "-h", HOST, "-k", "", "-F"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command("postgres", *options), stdout=log, stderr=log)
        ready = self._command("pg_isready", "-h", HOST, "-p", str(self.port), "-q")
        while subprocess.run(ready).returncode != 0:
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """End it with every connection, as a crash does; what was committed stays."""
        if self._process is not None:
            everything = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            for process in everything:
                with suppress(psutil.NoSuchProcess):  # it ended with the server
                    process.kill()
            self._process.wait()
            psutil.wait_procs(everything)
            self._process = None

    def database(self) -> str:
        """A new database's name."""
        name = f"rufus_{uuid.uuid4().hex[:8]}"
        self.ask("postgres", f"CREATE DATABASE {name}")
        return name

    def url(self, driver: str, database: str) -> str:
        return f"{driver}://rufus:{PASSWORD}@{HOST}:{self.port}/{database}"

    def ask(self, database: str, query: str) -> str:
        """What `psql` prints for a query."""
        command = self._command("psql", "-h", HOST, "-p", str(self.port), "-U", "rufus", "-d", database, "-tAc", query)
        env = {**os.environ, "PGPASSWORD": PASSWORD}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout.strip()

    @staticmethod
    def _command(program: str, *words: str) -> list[str]:
        """PostgreSQL refuses to run as root, so root is another user to it. It ends with the thread that started it."""
        folder, bubblewrap = binaries(), find_bubblewrap()
        assert folder is not None
        assert bubblewrap is not None
        other = ["--unshare-user", "--uid", "1000", "--gid", "1000"] if os.geteuid() == 0 else []
        return [str(bubblewrap), *other, "--dev-bind", "/", "/", "--die-with-parent", str(folder / program), *words]


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    if binaries() is None:
        pytest.skip("no PostgreSQL server is installed: apt-get install --no-install-recommends postgresql")
    pytest.importorskip("psycopg", reason="needs rufus-air[postgres]")
    require_isolation()  # it runs in a bubblewrap
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """The same server for all tests of a process; it runs, whatever the test before did."""
    yield postgres_server
    if not postgres_server.runs:
        postgres_server.start()
