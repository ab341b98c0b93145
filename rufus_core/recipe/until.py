"""Part of a graph: as far as one stage, from one stage on, or one stage alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rufus_core.errors import ConfigError, LineageError
from rufus_core.lineage.newest import newest_first
from rufus_core.lineage.record import CHECKPOINT_KINDS
from rufus_core.lineage.store import Store
from rufus_core.recipe.graph import checkpoint_of
from rufus_core.recipe.step import Step
from rufus_core.recipe.validate import nearest


def part(
    graph: Sequence[Step],
    store: Store,
    *,
    until: str | None = None,
    start: str | None = None,
    only: str | None = None,
    force: str | None = None,
) -> list[Step]:
    """The part of a graph that `rufus run` is asked for by --until, --from, --only and --force.

    Raises:
        ConfigError: there is no such stage, or the options leave nothing to do together.
        LineageError: the store lacks a checkpoint that is begun with.
    """
    if only is not None and (until is not None or start is not None):
        other = "--from" if until is None else "--until"
        raise ConfigError(
            f"--only runs one stage, and {other} several", where=f"--only {only}", hint="give one of them"
        )
    steps = up_to(graph, until)
    if only is not None:
        steps = alone(steps, only, store)
    if start is not None:
        if until is not None:
            _require_stage(start, "--from", {step.name: step for step in graph})
            _require_before(start, until, steps)
        steps = starting_at(steps, start, store)
    return steps if force is None else forced(steps, force)


def up_to(graph: Sequence[Step], stage: str | None) -> list[Step]:
    """What the checkpoint of `stage` is made from, and the scores of all checkpoints on the way; None keeps it all.

    Raises:
        ConfigError: the graph has no such stage.
    """
    if stage is None:
        return list(graph)
    by_name = {step.name: step for step in graph}
    _require_stage(stage, "--until", by_name)
    before = closure([checkpoint_of(stage)], by_name)
    scores = [step.name for step in graph if step.kind == "scores" and step.inputs["checkpoint"] in before]
    wanted = closure([*before, *scores], by_name)
    return [step for step in graph if step.name in wanted]


def starting_at(graph: Sequence[Step], stage: str, store: Store) -> list[Step]:
    """The steps of `stage` and of all stages that descend from it, on the newest checkpoints above that `store` has.

    Raises:
        ConfigError: the graph has no such stage.
        LineageError: the store lacks a checkpoint that is begun with.
    """
    by_name = {step.name: step for step in graph}
    _require_stage(stage, "--from", by_name)
    ends = [step for step in graph if step.kind in CHECKPOINT_KINDS]
    stages = [_stage_of(end) for end in ends if checkpoint_of(stage) in closure([end.name], by_name)]
    return _part(graph, stages, store)


def alone(graph: Sequence[Step], stage: str, store: Store) -> list[Step]:
    """The steps of `stage` alone, on the newest checkpoint above that `store` has. Raises as `starting_at`."""
    _require_stage(stage, "--only", {step.name: step for step in graph})
    return _part(graph, [stage], store)


def forced(graph: Sequence[Step], stage: str) -> list[Step]:
    """The graph, with the steps of `stage` to be made anew even where they are intact.

    Raises:
        ConfigError: the graph makes no such stage.
    """
    _require_stage(stage, "--force", {step.name: step for step in graph if step.artifact is None})
    return [replace(step, force=step.artifact is None and _stage_of(step) == stage) for step in graph]


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


def _part(graph: Sequence[Step], stages: Sequence[str], store: Store) -> list[Step]:
    """The steps of `stages` and the data that their scores need; other stages' checkpoints are taken as they are."""
    above = {step.name for step in graph if step.kind in CHECKPOINT_KINDS and _stage_of(step) not in stages}
    by_name = {step.name: replace(step, inputs={}) if step.name in above else step for step in graph}
    wanted = closure([step.name for step in graph if _stage_of(step) in stages], by_name)
    return [_given(step, store) if step.name in above else step for step in graph if step.name in wanted]


def _given(step: Step, store: Store) -> Step:
    """The step's newest artifact in place of the step."""
    newest = next(newest_first(store, step.name), None)
    if isinstance(newest, LineageError):
        raise newest
    if newest is None:
        raise LineageError(
            f"the store holds no {step.name} to start from",
            where=str(store.root),
            hint=f"make it with `rufus run --until {_stage_of(step)}`",
        )
    return Step(step.name, step.kind, step.title, {}, stage=step.stage, artifact=newest)


def _require_before(start: str, until: str, steps: Sequence[Step]) -> None:
    if checkpoint_of(start) not in {step.name for step in steps}:
        raise ConfigError(f"{start} comes after {until}", where=f"--from {start} --until {until}", hint="swap the two")


def _stage_of(step: Step) -> str:
    return step.stage or "base"


def _require_stage(stage: str, option: str, by_name: dict[str, Step]) -> None:
    if checkpoint_of(stage) not in by_name:
        known = dict.fromkeys(map(_stage_of, by_name.values()))
        raise ConfigError(f"there is no stage {stage!r}", where=option, hint=nearest(stage, known))
