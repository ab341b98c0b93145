"""Runs a server that can't outlive its owner: `python -m rufus_core.rollout.sglang.keeper COMMAND...`.

The owner holds the other end of standard input. When that closes (on purpose, or because the owner died in whatever
way), every process of this one's session is killed: SGLang starts several, which its own end may leave behind. The same
is done when the server ends by itself. A server that keeps no state needs no grace. Where this process is killed
itself, as Ray kills an actor's children, the kernel kills the server with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

from rufus_core.lineage.process import kill_session

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(command: list[str]) -> int:
    """The server's exit code; negative: the signal that ended it."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)  # noqa: S603
    threading.Thread(target=_end_with_owner, daemon=True).start()
    code = server.wait()
    kill_session()
    return code


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_owner() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    kill_session()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
