"""A Ray cluster of two nodes on this machine: `python -m tests.tasks.ray_nodes FOLDER PORT`, to be killed as a whole.

Everything is in the session of this process and below FOLDER. It says the address of the cluster once it is there, and
ends with its standard input. The head, whose Jobs API listens at PORT, has one CPU; the other node has two, a
`worker`, and two GPUs that are there by name alone. `RAY_TMPDIR` must say FOLDER already: Ray reads it when it is
imported.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rufus_core.lineage.process import kill_session
from tasks.ray_cluster import LOOPBACK
from tasks.servers import free_port

_OBJECT_STORE_BYTES = 80 << 20


@dataclass
class Nodes:
    """Where a cluster is; `kill` takes all of it down at once, and `start` makes another one at the same port."""

    folder: Path
    port: int
    address: str = ""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tasks.ray_nodes", str(self.folder), str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "RAY_TMPDIR": str(self.folder), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()
        assert self.address

    def kill(self) -> None:
        """The head, the other node, and what runs on them."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


@contextmanager
def two_nodes(folder: Path) -> Iterator[Nodes]:
    """The environment of this process is changed: from then on it can use this cluster alone."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = dict(os.environ)
    os.environ.update(LOOPBACK | token)
    nodes = Nodes(folder, free_port())
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.kill()
        os.environ.clear()
        os.environ.update(before)


def main(port: int) -> None:
    from ray.cluster_utils import Cluster

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    store = {"object_store_memory": _OBJECT_STORE_BYTES}
    # Any free port for its agent: Ray's default is one for the whole machine, and jobs are submitted through it.
    agent = {"dashboard_agent_listen_port": None}
    head = {"num_cpus": 1, "include_dashboard": True, "dashboard_port": port, **agent, **store}
    try:
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(num_cpus=2, num_gpus=2, resources={"worker": 1}, **store)
        print(cluster.address, flush=True)
        while os.read(sys.stdin.fileno(), 1024):
            pass
    finally:
        kill_session()


if __name__ == "__main__":
    main(int(sys.argv[2]))
    os._exit(0)
