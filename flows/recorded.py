"""Task states travel to Prefect's server as events, behind the run's back: here they are waited for."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.events.worker import EventsWorker

WAIT_SECONDS = 10.0
_PAGE = 200  # as many as Prefect answers at once


def send_events() -> None:
    """Send what still waits in this process.

    On a thread of its own: where an event loop runs (a notebook's, say), Prefect only promises to do it.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(EventsWorker.drain_all, timeout=WAIT_SECONDS).result()


def await_recorded(flow_run_id: UUID, num_tasks: int) -> bool:
    """Wait until the server has written down the ends of a run's tasks; False if it doesn't in ten seconds.

    A server that is stopped earlier forgets those it had only heard of, and shows them as running or not at all.
    """
    this = FlowRunFilter.model_validate({"id": {"any_": [flow_run_id]}})
    deadline = time.monotonic() + WAIT_SECONDS
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            tasks = client.read_task_runs(flow_run_filter=this, limit=_PAGE)
            if sum(task.state is not None and task.state.is_final() for task in tasks) >= min(num_tasks, _PAGE):
                return True
            time.sleep(0.1)
    return False
