"""Data preparation: the problem sets and training examples of all stages, and what they need."""

from __future__ import annotations

from collections.abc import Sequence

from prefect import flow
from prefect.client.schemas.objects import State

from flows.deployed import called, run_deployed
from flows.run import THREADS, flow_state
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.step import Step
from rufus_core.recipe.until import closure
from rufus_core.settings import Recipe


@flow(name="rufus-data", flow_run_name=called("data of {recipe} on {profile}"), task_runner=THREADS)
def rufus_data(
    recipe: str = "rufus_air", profile: str = "cpu", overrides: list[str] | None = None, home: str | None = None
) -> State[None]:
    """Make the data of every stage, before anything is trained on it.

    Args:
        recipe: A name of deployments/recipes, or a file on the worker's machine.
        profile: A name of deployments/profiles, or a file on the worker's machine.
        overrides: Settings to change, each of the form a.b.c=VALUE.
        home: Where runs live; by default the worker's RUFUS_HOME.
    """
    return flow_state(run_deployed(lambda r, _: data_graph(r), recipe, profile, overrides, home))


def data_graph(recipe: Recipe) -> Sequence[Step]:
    by_name = {step.name: step for step in build_graph(recipe)}
    wanted = closure([step.name for step in by_name.values() if step.kind == "problems"], by_name)
    return [step for step in by_name.values() if step.name in wanted]
