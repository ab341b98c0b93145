"""Compares what Prefect and MLflow show of a home with its records."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterState
from prefect.client.schemas.filters import TaskRunFilterStateType as TaskStateIs
from prefect.client.schemas.objects import StateType, TaskRun

from flows.orphans import left_running
from rufus_core.errors import LineageError
from rufus_core.lineage.digest import RECORD_FILE
from rufus_core.lineage.files import entries
from rufus_core.lineage.record import read_record
from rufus_core.lineage.store import Store
from rufus_core.ports.orchestration import Difference

PAGE = 200
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")  # in the message of a completed task's state


def known_digests(store: Store) -> set[str]:
    """Digests of all artifacts that were ever published and whose record is still there, replaced ones too."""
    known = {record.digest for record in store.records()}
    for folder in entries(store.root / "replaced"):
        with suppress(LineageError):
            known.add(read_record(folder / RECORD_FILE).digest)
    return known


def verify_prefect(digests: Collection[str]) -> list[Difference]:
    """Tasks that say they made or found an artifact without a record, and runs of dead processes. Reads only.

    `digests` are those of all records, replaced ones too. PREFECT_API_URL says which server is asked.
    """
    with get_client(sync_client=True) as client:
        return [*_unfounded(client, digests), *_left_running(client)]


def _unfounded(client: SyncPrefectClient, digests: Collection[str]) -> Iterator[Difference]:
    for run in _completed(client):
        told = _DIGEST.search(run.state.message or "") if run.state else None
        if told and told[0] not in digests:
            what = f"says {run.state_name}, and no record has its digest {told[0][:12]}"
            yield Difference(f"Prefect task run {run.name}", what, "rufus run")


def _completed(client: SyncPrefectClient) -> Iterator[TaskRun]:
    completed = TaskRunFilter(state=TaskRunFilterState(type=TaskStateIs(any_=[StateType.COMPLETED])))
    offset = 0
    while page := client.read_task_runs(task_run_filter=completed, limit=PAGE, offset=offset):
        yield from page
        offset += len(page)


def _left_running(client: SyncPrefectClient) -> Iterator[Difference]:
    for run in left_running(client):
        yield Difference(f"Prefect flow run {run.name}", f"is {run.state_name}, and its process is dead", "rufus run")
