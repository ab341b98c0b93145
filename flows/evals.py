"""The eval sweep: chosen checkpoints on chosen benchmarks, once for each date."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext

from flows.deployed import called, run_deployed
from flows.run import THREADS, flow_state
from rufus_core.lineage.resolve import Ref, checkpoint_name
from rufus_core.lineage.store import Store
from rufus_core.recipe.evals import CHECKPOINT, eval_graph
from rufus_core.recipe.step import Step
from rufus_core.settings import Recipe


@flow(name="rufus-evals", flow_run_name=called("evals of {recipe} on {profile}"), task_runner=THREADS)
def rufus_evals(
    checkpoints: list[str] | None = None,
    benchmarks: list[str] | None = None,
    on: date | None = None,
    time_zone: str = "UTC",
    recipe: str = "rufus_air",
    profile: str = "cpu",
    overrides: list[str] | None = None,
    home: str | None = None,
) -> State[None]:
    """Measure each checkpoint on each benchmark; a cell that was measured on the same date is reused.

    Args:
        checkpoints: Stages, or checkpoints as `rufus eval` takes them; by default all stages that have one.
        benchmarks: Those of the recipe to measure on; by default each stage's targets and guardrails.
        on: The date of the cells; by default the one for which this run was scheduled, so that a retry on the next day
            fills the gaps of the day before.
        time_zone: In which that date is meant.
        recipe: A name of deployments/recipes, or a file on the worker's machine.
        profile: A name of deployments/profiles, or a file on the worker's machine.
        overrides: Settings to change, each of the form a.b.c=VALUE.
        home: Where runs live; by default the worker's RUFUS_HOME.
    """
    day = on or _scheduled().astimezone(ZoneInfo(time_zone)).date()

    def graph(settings: Recipe, store: Store) -> list[Step]:
        return sweep_graph(settings, store, checkpoints or stages_with_checkpoints(settings, store), benchmarks, day)

    return flow_state(run_deployed(graph, recipe, profile, overrides, home, keep_going=True))


def sweep_graph(
    recipe: Recipe, store: Store, checkpoints: Sequence[str], benchmarks: Sequence[str] | None, day: date
) -> list[Step]:
    """The graphs of all cells as one. A checkpoint that is named twice is measured once."""
    steps: dict[str, Step] = {}
    for text in checkpoints:
        ref = store.resolve(text)
        for step in eval_graph(recipe, ref, text, benchmarks or ()):
            cell = _named_by_digest(step, ref, day)
            steps.setdefault(cell.name, cell)
    return list(steps.values())


def stages_with_checkpoints(recipe: Recipe, store: Store) -> list[str]:
    names = store.names()
    return [stage for stage in ("base", *recipe.stages) if {stage, checkpoint_name(stage)} & set(names)]


def _named_by_digest(step: Step, ref: Ref, day: date) -> Step:
    """An eval's step under a name that no other checkpoint's step has; a cell's identity holds the date."""
    which = f"{ref.record.digest[:12]}-{ref.step}" if ref.subfolder else ref.record.digest[:12]
    if step.name == CHECKPOINT:
        return replace(step, name=f"{CHECKPOINT}/{which}")
    if step.kind != "scores":
        return step
    inputs = {role: f"{name}/{which}" if name == CHECKPOINT else name for role, name in step.inputs.items()}
    config = {**step.config, "date": day.isoformat()}
    return replace(step, name=f"{step.name}/{which}", inputs=inputs, config=config)


def _scheduled() -> datetime:
    """When this flow run should have started: the same for each of its retries."""
    context = FlowRunContext.get()
    planned = context.flow_run.expected_start_time if context and context.flow_run else None
    return planned or datetime.now(UTC)
