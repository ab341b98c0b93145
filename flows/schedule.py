"""Which steps start next. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from rufus_core.ports.orchestration import StepOutcome
from rufus_core.recipe.step import Step


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def by_urgency(graph: Sequence[Step]) -> list[Step]:
    """Steps with the longest chain of steps after them first, else in the graph's order.

    So the next stage's training waits neither for scores nor for the data of later stages.
    """
    after = {step.name: 0 for step in graph}  # steps in the longest chain that follows
    for step in reversed(graph):
        for name in step.inputs.values():
            after[name] = max(after[name], after[step.name] + 1)
    return sorted(graph, key=lambda step: -after[step.name])


def fitting(steps: Sequence[Step], threads_of: Callable[[Step], int], busy: int, cores: int) -> list[Step]:
    """The first of these steps, as far as the free cores carry them; `busy` is the threads of what runs.

    Nothing overtakes a step that has to wait, so a training is never kept waiting by a row of small jobs. A step that
    asks for more threads than there are cores runs alone.
    """
    chosen: list[Step] = []
    for step in steps:
        if busy and busy + threads_of(step) > cores:
            break
        chosen.append(step)
        busy += threads_of(step)
    return chosen


def startable(waiting: Mapping[str, Step], outcomes: Mapping[str, StepOutcome], keep_going: bool = False) -> list[Step]:
    """Steps whose inputs are there; none after a failure, unless `keep_going`."""
    done = {name for name, outcome in outcomes.items() if outcome.status in ("reused", "completed")}
    if len(done) < len(outcomes) and not keep_going:
        return []
    return [step for step in waiting.values() if done.issuperset(step.inputs.values())]
