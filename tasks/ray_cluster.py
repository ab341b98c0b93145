"""A Ray cluster of this machine that can't outlive its owner: `python -m tasks.ray_cluster CPUS`.

It says its address on standard output. The owner holds the other end of standard input. When that closes (on purpose,
or because the owner died in whatever way), every process of the cluster is killed: Ray's own agents would live on.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from rufus_core.errors import InfrastructureError
from rufus_core.lineage.process import kill_session

_OBJECT_STORE_BYTES = 80 << 20  # about the least Ray takes: ranks exchange by other ways
# For the cluster, its owner and the ranks. Ray gives no other way to listen on the loopback interface alone.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo"}


@contextmanager
def own_cluster(num_cpus: int) -> Iterator[str]:
    """Start a cluster and yield its address. It, and all that runs on it, is dead on leaving.

    The environment of this process is changed: from then on it can use this cluster alone.

    Raises:
        InfrastructureError: Ray didn't start; its reasons are in this process's output.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # or Ray leaves one in the user's home
    os.environ.update(LOOPBACK | token)
    keeper = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "tasks.ray_cluster", str(num_cpus)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        address = keeper.stdout.readline().decode().strip()
        if not address:
            raise InfrastructureError("Ray didn't start", hint="the job's log says why")
        yield address
    finally:
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()


def main(num_cpus: int) -> None:
    import ray

    folder = tempfile.mkdtemp(prefix="rufus-")  # short, for the paths of sockets
    try:
        context = ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level="warning",
            _temp_dir=folder,
        )
        print(context.address_info["gcs_address"], flush=True)
        while os.read(sys.stdin.fileno(), 1024):
            pass
    finally:
        kill_session()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # Ray would wait at the interpreter's end for what is dead
