"""GPUs that jobs of several runs share: slots of a global concurrency limit in Prefect, one limit for each profile.

A process beside the run holds a job's slots (`flows/slot_keeper.py`), as long as the run or its job lives.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import get_current_settings

from flows.slot_keeper import HELD
from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.recipe.step import Step
from rufus_core.settings import ComputeSettings, Recipe
from tasks.jobs import JobCancelled, JobResources

RENEW_SECONDS = 20.0  # a lease has 60
POLL_SECONDS = 0.1


def limit_name(profile: str) -> str:
    return f"rufus-gpus-{profile}"


def num_gpus(step: Step) -> int:
    """GPUs that the job of this step occupies."""
    return 0 if step.compute is None else step.compute.gpus_per_node * _num_nodes(step.kind, step.compute)


def _num_nodes(kind: str, compute: ComputeSettings) -> int:
    """All of a training; everything else is one process."""
    return compute.nodes + compute.extra_nodes if kind == "training" else 1


def job_resources(recipe: Recipe, step: Step) -> JobResources:
    """What the step's job asks of a cluster."""
    execution = recipe.execution.for_step(step.kind, step.compute)
    if step.compute is None:
        return JobResources(execution.threads, num_ranks=execution.num_ranks)
    nodes = _num_nodes(step.kind, step.compute)
    return JobResources(execution.threads, nodes, step.compute.gpus_per_node, execution.num_ranks)


@contextmanager
def gpus_held(
    recipe: Recipe,
    step: Step,
    folder: Path,
    cancelled: threading.Event,
    warn: Callable[[str], None],
    renew_seconds: float = RENEW_SECONDS,
) -> Iterator[None]:
    """Within, the step has its GPUs for itself; a step without GPUs asks nobody.

    `folder` is its job's. A job that a dead run left there has kept its GPUs, and the step goes on with them.

    Raises:
        ConfigError: it needs more than there are.
        InfrastructureError: the process that is to hold them ended.
        JobCancelled: `cancelled` was set while it waited.
    """
    wanted = num_gpus(step)
    if not wanted:
        yield
        return
    limit = limit_name(recipe.profile)
    _require(limit, wanted)
    arguments = [step.name, limit, str(wanted), str(folder.absolute()), str(renew_seconds)]
    arguments.append(recipe.execution.model_dump_json())
    keeper = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "flows.slot_keeper", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # it outlives the run, and a Ctrl-C isn't meant for it
        env={**os.environ, **get_current_settings().to_environment_variables(exclude_unset=True)},
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    held, over = threading.Event(), threading.Event()
    hearing = threading.Thread(target=_hear, args=(keeper.stdout, step.name, held, over, warn), daemon=True)
    hearing.start()
    try:
        while not held.wait(POLL_SECONDS):
            if cancelled.is_set():
                raise JobCancelled
            if keeper.poll() is not None:
                raise InfrastructureError(f"the process that is to hold the GPUs of {step.name} ended: {keeper.args!r}")
        yield
    finally:
        over.set()
        with suppress(BrokenPipeError), keeper.stdin as gate:
            gate.write(b"\n")
        keeper.wait()
        hearing.join()
        keeper.stdout.close()


def _require(name: str, slots: int) -> None:
    if (limit := _limit(name, slots)) < slots:
        raise ConfigError(
            f"this step needs {slots} GPUs, and the limit {name} is {limit}",
            hint=f"prefect global-concurrency-limit update {name} --limit N, or deployments/limits.yaml",
        )


def _limit(name: str, slots: int) -> int:
    """How many slots there are. Where nobody has said it, one step at a time."""
    with get_client(sync_client=True) as client:
        try:
            return client.read_global_concurrency_limit_by_name(name).limit
        except ObjectNotFound:
            try:
                client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=slots))
            except ObjectAlreadyExists:  # another run was faster
                return client.read_global_concurrency_limit_by_name(name).limit
            return slots


def _hear(
    keeper: IO[bytes], step: str, held: threading.Event, over: threading.Event, warn: Callable[[str], None]
) -> None:
    """A job that runs is never stopped for the slots' sake: it is told that others may take its GPUs."""
    for line in keeper:
        if (said := line.decode().strip()) == HELD:
            held.set()
        else:
            warn(said)
    if not over.is_set():
        warn(f"the GPUs of {step} may be given to another run, for the process that held them ended")
