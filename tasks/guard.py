"""Runs a server that can't outlive its owner: `python -m tasks.guard COMMAND...`.

The owner holds the other end of standard input. When it closes (on purpose, or because the owner died in whatever
way), the server's process group is told to stop, and killed if it doesn't. A server that a signal ended while its owner
lives is started again: the owner's run then goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

GRACE_SECONDS = 5.0
MOST_STARTS = 10


class Guard:
    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._ownerless = False
        self._starting = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Until the server ends by itself or its owner goes; its exit code."""
        threading.Thread(target=self._stop_with_owner, daemon=True).start()
        code = 0
        for _ in range(MOST_STARTS):
            with self._starting:
                if self._ownerless:
                    break
                self._server = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
            code = self._server.wait()
            with suppress(ProcessLookupError):  # worker processes that the server left behind
                os.killpg(self._server.pid, signal.SIGKILL)
            if code >= 0:
                break
        return code

    def _stop_with_owner(self) -> None:
        while os.read(sys.stdin.fileno(), 1024):  # not sys.stdin, whose lock would be held when the interpreter ends
            pass
        with self._starting:
            self._ownerless = True
            if self._server is not None:
                self._server.terminate()
                threading.Timer(GRACE_SECONDS, self._server.kill).start()


if __name__ == "__main__":
    sys.exit(Guard(sys.argv[1:]).run())
