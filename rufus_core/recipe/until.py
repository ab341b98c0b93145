"""Part of a graph: what it takes to get as far as one stage."""

from __future__ import annotations

from collections.abc import Sequence

from rufus_core.errors import ConfigError
from rufus_core.recipe.graph import Step, checkpoint_of


def up_to(graph: Sequence[Step], stage: str | None) -> list[Step]:
    """What the checkpoint of `stage` is made from, and the scores of all checkpoints on the way; None keeps it all.

    Raises:
        ConfigError: the graph has no such stage.
    """
    if stage is None:
        return list(graph)
    by_name = {step.name: step for step in graph}
    if checkpoint_of(stage) not in by_name:
        known = dict.fromkeys(step.stage for step in graph if step.stage)
        raise ConfigError(f"there is no stage {stage!r}", where="--until", hint=f"stages: {', '.join(known)}")
    before = closure([checkpoint_of(stage)], by_name)
    scores = [step.name for step in graph if step.kind == "scores" and step.inputs["checkpoint"] in before]
    wanted = closure([*before, *scores], by_name)
    return [step for step in graph if step.name in wanted]


def closure(names: Sequence[str], by_name: dict[str, Step]) -> set[str]:
    """These steps and everything they are made from."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += by_name[name].inputs.values()
    return found
