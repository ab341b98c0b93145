"""A deployed flow over the miniature graph, whose jobs are those of `fake_job`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.deployed import LogObserver
from flows.run import THREADS, flow_state, run_tracked
from rufus_core.lineage.home import rufus_home
from rufus_core.recipe.load import load_recipe
from tests.flows.test_recipe import COMMAND, graph

TRAINED = "reasoning_rl"  # a stage with GPUs


@flow(name="rufus-tiny", task_runner=THREADS)
def rufus_tiny(config: dict[str, Any], gpus: bool = False) -> State[None]:
    """`config` is that of the training, which takes the GPUs of a cluster's stage if asked."""
    recipe = load_recipe("rufus_air", "h200", ["execution.launcher=local"])
    *before, training = graph(**config)
    on_gpus = replace(training, kind="training", stage=TRAINED, compute=recipe.stages[TRAINED].compute)
    steps = [*before, on_gpus if gpus else training]
    return flow_state(run_tracked(recipe, steps, rufus_home(), LogObserver(), COMMAND))
