"""GPUs that jobs of several runs share: slots of a global concurrency limit in Prefect, one limit for each profile.

A job holds its slots by a lease that its run renews. When the run dies, Prefect takes them back after the lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectException

from rufus_core.errors import ConfigError
from rufus_core.recipe.graph import Step
from rufus_core.settings import Recipe
from tasks.launcher import JobCancelled

LEASE_SECONDS = 60.0  # the shortest that Prefect gives
RENEW_SECONDS = 20.0
POLL_SECONDS = 2.0
ON_CPU = ("base", "problems")


def limit_name(profile: str) -> str:
    return f"rufus-gpus-{profile}"


def num_gpus(recipe: Recipe, step: Step) -> int:
    """GPUs that the job of this step occupies."""
    if step.stage not in recipe.stages or step.kind in ON_CPU:
        return 0
    compute = recipe.stages[step.stage].compute
    return compute.gpus_per_node * (compute.nodes + compute.extra_nodes)


@contextmanager
def gpus_held(recipe: Recipe, step: Step, cancelled: threading.Event, warn: Callable[[str], None]) -> Iterator[None]:
    """Within, the step has its GPUs for itself; a step without GPUs asks nobody.

    Raises:
        ConfigError: it needs more than there are.
        JobCancelled: `cancelled` was set while it waited.
    """
    wanted = num_gpus(recipe, step)
    if not wanted:
        yield
        return
    ended = threading.Event()
    with get_client(sync_client=True) as client:
        lease = _acquire(client, limit_name(recipe.profile), wanted, cancelled)
        renewing = threading.Thread(target=_renew, args=(client, lease, step.name, ended, warn), daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            with suppress(httpx.HTTPError, PrefectException):  # else they are free when the lease ends
                client.release_concurrency_slots_with_lease(lease)


def _acquire(client: SyncPrefectClient, name: str, slots: int, cancelled: threading.Event) -> UUID:
    if (limit := _limit(client, name, slots)) < slots:
        raise ConfigError(
            f"this step needs {slots} GPUs, and the limit {name} is {limit}",
            hint=f"prefect global-concurrency-limit update {name} --limit N, or deployments/limits.yaml",
        )
    while not cancelled.is_set():
        try:
            answer = client.increment_concurrency_slots_with_lease([name], slots, "concurrency", LEASE_SECONDS)
            return UUID(answer.json()["lease_id"])
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.LOCKED:
                raise
            cancelled.wait(POLL_SECONDS)
    raise JobCancelled


def _limit(client: SyncPrefectClient, name: str, slots: int) -> int:
    """How many slots there are. Where nobody has said it, one step at a time."""
    try:
        return client.read_global_concurrency_limit_by_name(name).limit
    except ObjectNotFound:
        try:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=slots))
        except ObjectAlreadyExists:  # another run was faster
            return client.read_global_concurrency_limit_by_name(name).limit
        return slots


def _renew(
    client: SyncPrefectClient, lease: UUID, step: str, ended: threading.Event, warn: Callable[[str], None]
) -> None:
    """A job that runs is never stopped for the lease's sake: it is told that others may take its GPUs."""
    while not ended.wait(RENEW_SECONDS):
        try:
            client.renew_concurrency_lease(lease, LEASE_SECONDS)
        except (httpx.HTTPError, PrefectException) as error:
            warn(f"the GPUs of {step} may be given to another run, for Prefect can't be told that it lives: {error}")
