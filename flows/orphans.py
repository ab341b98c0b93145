"""Flow runs whose process died without saying so."""

from __future__ import annotations

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    TaskRunFilter,
    TaskRunFilterState,
)
from prefect.client.schemas.filters import FlowRunFilterStateType as StateIs
from prefect.client.schemas.filters import TaskRunFilterStateType as TaskStateIs
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Crashed

from flows.run import FLOW
from rufus_core.lineage.process import ProcessId

WHY = "the process of this run died"


def end_orphans() -> None:
    """Mark as crashed what a killed `rufus run` left running, with its tasks. Its jobs are found by their handles."""
    with get_client(sync_client=True) as client:
        for run in left_running(client):
            _end(client, run)


def left_running(client: SyncPrefectClient) -> list[FlowRun]:
    """Runs that Prefect shows as going on, and whose process is dead. A deployed run names no process."""
    running = FlowRunFilter(state=FlowRunFilterState(type=StateIs(any_=[StateType.RUNNING, StateType.PENDING])))
    ours = FlowFilter(name=FlowFilterName(any_=[FLOW]))
    runs = client.read_flow_runs(flow_filter=ours, flow_run_filter=running)
    return [run for run in runs if (process := run.parameters.get("process")) and ProcessId.parse(process).gone()]


def end_tasks_of_dead_runs() -> None:
    """Mark as crashed the tasks that Prefect left running when it marked a deployed flow run so."""
    crashed = FlowRunFilter(state=FlowRunFilterState(type=StateIs(any_=[StateType.CRASHED])))
    running = TaskRunFilter(state=TaskRunFilterState(type=TaskStateIs(any_=[StateType.RUNNING])))
    with get_client(sync_client=True) as client:
        for task in client.read_task_runs(flow_run_filter=crashed, task_run_filter=running):
            client.set_task_run_state(task.id, Crashed(message=WHY), force=True)


def _end(client: SyncPrefectClient, run: FlowRun) -> None:
    this = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
    for task in client.read_task_runs(flow_run_filter=this):
        if task.state is None or not task.state.is_final():
            client.set_task_run_state(task.id, Crashed(message=WHY), force=True)
    client.set_flow_run_state(run.id, Crashed(message=WHY), force=True)
