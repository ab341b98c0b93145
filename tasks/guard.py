"""Runs a server that can't outlive its owner: `python -m tasks.guard COMMAND...`.

The owner holds the other end of standard input. When it closes (on purpose, or because the owner died in whatever
way), the server's process group is told to stop, and killed if it doesn't.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

GRACE_SECONDS = 5.0


def main(command: list[str]) -> int:
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    threading.Thread(target=_stop_with_owner, args=(server,), daemon=True).start()
    code = server.wait()
    with suppress(ProcessLookupError):  # worker processes that the server left behind
        os.killpg(server.pid, signal.SIGKILL)
    return code


def _stop_with_owner(server: subprocess.Popen[bytes]) -> None:
    while os.read(sys.stdin.fileno(), 1024):  # not sys.stdin, whose lock would be held when the interpreter ends
        pass
    server.terminate()
    threading.Timer(GRACE_SECONDS, server.kill).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
