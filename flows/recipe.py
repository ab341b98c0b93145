"""The whole recipe, or its part up to a stage."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State

from flows.deployed import called, run_deployed
from flows.run import FLOW, THREADS, flow_state
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.until import up_to


@flow(name=FLOW, flow_run_name=called("{recipe} on {profile}"), task_runner=THREADS)
def rufus_recipe(
    recipe: str = "rufus_air",
    profile: str = "cpu",
    overrides: list[str] | None = None,
    home: str | None = None,
    until: str | None = None,
) -> State[None]:
    """Run a recipe under a profile.

    Args:
        recipe: A name of deployments/recipes, or a file on the worker's machine.
        profile: A name of deployments/profiles, or a file on the worker's machine.
        overrides: Settings to change, each of the form a.b.c=VALUE.
        home: Where runs live; by default the worker's RUFUS_HOME.
        until: The last stage to run; by default all of them.
    """
    outcome = run_deployed(lambda r, _: up_to(build_graph(r), until), recipe, profile, overrides, home)
    return flow_state(outcome)
