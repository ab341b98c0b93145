"""How a job's process comes to be: forked from a warm server, else as a program of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tasks.children import Child, ExecutedChild
from tasks.forkserver import ForkServer, ForkServerGone

JOB_COMMAND = (sys.executable, "-m", "rufus_core.jobs")  # carries out the document that follows


class Spawner:
    """Starts the processes that carry out job documents. On leaving the `with`, jobs live on and the server ends.

    With a `command` of the caller's no server is used.
    """

    def __init__(self, threads: int, command: Sequence[str] | None = None) -> None:
        self._env = job_environment(threads)
        self._command = tuple(command or JOB_COMMAND)
        self._server = None if command else ForkServer(self._env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._server is not None:
            self._server.close()

    def spawn(self, document: Path, log: IO[bytes]) -> Child:
        if self._server is not None:
            with suppress(ForkServerGone):  # why, a program of its own will say in the log, if it can't start either
                return self._server.spawn(document, log)
        return ExecutedChild([*self._command, str(document)], self._env, log)


def job_environment(threads: int) -> dict[str, str]:
    """The environment of a job: this process's, with threads pinned, telemetry off and the model hub offline."""
    return {**os.environ, **job_variables(threads)}


def job_variables(threads: int) -> dict[str, str]:
    """What a job needs of its environment, on whatever machine it runs. Nothing of it is secret."""
    count = str(threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "TOKENIZERS_PARALLELISM": "false",
        "DO_NOT_TRACK": "true",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONUNBUFFERED": "1",
    }
