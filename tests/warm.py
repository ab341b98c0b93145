"""Processes of a test's own that start in milliseconds: forked from one that has imported torch and run none of it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from rufus_core.errors import RufusError

_WARM = multiprocessing.get_context("forkserver")
_WARM.set_forkserver_preload(["rufus_core.jobs.training", "rufus_core.training.base_policy", "pytest"])


def started(work: Callable[..., object], *args: Any, **options: Any) -> BaseProcess:
    """A process that calls `work` with one thread and the environment of now: its server's is that of an older test."""
    process = _WARM.Process(target=_call, args=(dict(os.environ), work, args, options))
    process.start()
    return process


def apart(folder: Path, work: Callable[..., Any], *args: Any) -> Any:
    """Call `work` in a process of its own, as Ray can be used once in a process: its result or its RufusError."""
    file = folder / "apart.pickle"
    started(_tell, file, work, args).join()
    return pickle.loads(file.read_bytes())


def _tell(file: Path, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        result = work(*args)
    except RufusError as error:
        result = error
    file.write_bytes(pickle.dumps(result))


def _call(
    environment: Mapping[str, str], work: Callable[..., object], args: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    work(*args, **options)
