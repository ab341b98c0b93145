"""Lets each stage's alias, and the recipe's own, mean the checkpoint that a run ended with."""

from __future__ import annotations

from collections.abc import Sequence

from rufus_core.lineage.aliases import Aliases
from rufus_core.lineage.resolve import checkpoint_name
from rufus_core.lineage.store import Store
from rufus_core.ports.orchestration import RunOutcome
from rufus_core.recipe.step import Step
from rufus_core.settings import Recipe
from tasks.tracking import Tracker


def point_aliases(recipe: Recipe, graph: Sequence[Step], outcome: RunOutcome, store: Store, tracker: Tracker) -> None:
    """Write the aliases that moved to the store and to MLflow: `sft` and so on, and for the last stage `rufus-air`."""
    last = next(reversed(recipe.stages), None)
    aliases = Aliases(store.root)
    for step in graph:
        ended = outcome.steps.get(step.name)
        if step.stage is None or step.name != checkpoint_name(step.stage) or ended is None or ended.record_id is None:
            continue
        record = store.get(ended.record_id)
        if record is None:
            continue
        for alias in (step.stage, recipe.registered) if step.stage == last else (step.stage,):
            if aliases.point(
                alias, record, recipe.registered, f"a run of {recipe.name} on {recipe.profile} {ended.status} it"
            ):
                tracker.aliased(alias, record, recipe.registered)
