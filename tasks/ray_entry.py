"""The process of a Ray job on its node: `python -m tasks.ray_entry FOLDER ATTEMPT COMMAND...`.

It runs COMMAND with its output in the folder's log, and ends as that ends. Ray's own way to stop a job sends SIGTERM to
everything that it started, a sandbox in the middle of a test too, and a training would save rewards that no undisturbed
one has. So a launcher stops a job by a file in its folder, and the job alone hears of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tasks.jobs import LOG

POLL_SECONDS = 0.2


def stop_file(folder: Path, attempt: int) -> Path:
    """Where it lies, the job is to save its state and end."""
    return folder / f"stop.{attempt}"


def kill_file(folder: Path, attempt: int) -> Path:
    """Where it lies, the job is to be killed."""
    return folder / f"kill.{attempt}"


def main(folder: Path, attempt: int, command: list[str]) -> int:
    """The command's exit code (negative: the signal that ended it)."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # Ray's; the job hears it too (it would inherit what is ignored)
    stop, kill, told = stop_file(folder, attempt), kill_file(folder, attempt), False
    with (folder / LOG).open("ab") as log:
        job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
    while (code := job.poll()) is None:
        if kill.exists():
            os.killpg(0, signal.SIGKILL)
        if stop.exists() and not told:
            job.terminate()
            told = True
        time.sleep(POLL_SECONDS)
    return code


if __name__ == "__main__":
    ended = main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    if ended < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
