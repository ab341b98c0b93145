"""One stage alone, on the newest checkpoint that it starts from."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State

from flows.deployed import called, run_deployed
from flows.run import THREADS, flow_state
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.until import alone


@flow(name="rufus-stage", flow_run_name=called("{stage} on {profile}"), task_runner=THREADS)
def rufus_stage(
    stage: str,
    recipe: str = "rufus_air",
    profile: str = "cpu",
    overrides: list[str] | None = None,
    home: str | None = None,
) -> State[None]:
    """Train, select and score one stage. Other stages' checkpoints are taken as the store has them.

    Args:
        stage: A stage of the recipe.
        recipe: A name of deployments/recipes, or a file on the worker's machine.
        profile: A name of deployments/profiles, or a file on the worker's machine.
        overrides: Settings to change, each of the form a.b.c=VALUE.
        home: Where runs live; by default the worker's RUFUS_HOME.
    """
    outcome = run_deployed(lambda r, store: alone(build_graph(r), stage, store), recipe, profile, overrides, home)
    return flow_state(outcome)
