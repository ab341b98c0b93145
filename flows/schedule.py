"""Which steps start next. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from rufus_core.ports import StepOutcome
from rufus_core.recipe.graph import Step


def jobs_at_once(threads: int) -> int:
    """As many jobs of `threads` threads as this process's cores carry."""
    return max(1, len(os.sched_getaffinity(0)) // threads)


def by_urgency(graph: Sequence[Step]) -> list[Step]:
    """Steps with the longest chain of steps after them first, else in the graph's order.

    So the next stage's training waits neither for scores nor for the data of later stages.
    """
    after = {step.name: 0 for step in graph}  # steps in the longest chain that follows
    for step in reversed(graph):
        for name in step.inputs.values():
            after[name] = max(after[name], after[step.name] + 1)
    return sorted(graph, key=lambda step: -after[step.name])


def startable(waiting: Mapping[str, Step], outcomes: Mapping[str, StepOutcome]) -> list[Step]:
    """Steps whose inputs are there; none after a failure."""
    done = {name for name, outcome in outcomes.items() if outcome.status in ("reused", "completed")}
    if len(done) < len(outcomes):
        return []
    return [step for step in waiting.values() if done.issuperset(step.inputs.values())]
