"""The graph of an evaluation: a checkpoint that is in the store, held-out problems, and a step for each benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rufus_core.errors import ConfigError, LineageError
from rufus_core.lineage.names import check_name
from rufus_core.lineage.record import Record
from rufus_core.lineage.resolve import Ref, steps_of
from rufus_core.recipe.graph import build_graph, scores_step
from rufus_core.recipe.step import Step
from rufus_core.recipe.until import closure
from rufus_core.recipe.validate import nearest
from rufus_core.settings import Recipe

CHECKPOINT = "checkpoint"  # the step that stands for what is measured


def eval_graph(recipe: Recipe, ref: Ref, title: str, benchmarks: Sequence[str] = ()) -> list[Step]:
    """Steps that measure what `ref` names on `benchmarks`; by default its stage's targets and guardrails.

    Each benchmark is an artifact of its own, `evals/<stage>[/step-N]/<benchmark>`, so that a repeat measures what is
    missing. Data steps are made as a run makes them, and reused where a run did.

    Raises:
        ConfigError: a benchmark is unknown or needs an outside harness, or there is none to choose by default.
        LineageError: `ref` is no checkpoint.
    """
    stage = _stage(ref.record, ref.subfolder, title)
    steps = [_measured(recipe, ref, stage, title, name) for name in _chosen(recipe, stage, benchmarks)]
    by_name = {step.name: step for step in build_graph(recipe)}
    data = closure([name for step in steps for name in step.inputs.values() if name != CHECKPOINT], by_name)
    given = Step(CHECKPOINT, ref.record.kind, title, {}, stage=ref.record.stage, artifact=ref.record)
    return [*(step for name, step in by_name.items() if name in data), given, *steps]


def resized(recipe: Recipe, samples: int | None, problems: int | None) -> Recipe:
    """The recipe with other numbers of samples and problems for all its benchmarks; None keeps its own."""
    given = {"samples_per_problem": samples, "num_problems": problems}
    changes = {name: value for name, value in given.items() if value is not None}
    benchmarks = {name: settings.model_copy(update=changes) for name, settings in recipe.benchmarks.items()}
    return recipe.model_copy(update={"benchmarks": benchmarks})


def _stage(record: Record, subfolder: str, title: str) -> str:
    if record.kind == "base":
        return "base"
    if record.stage is None or record.kind not in ("checkpoint", "training"):
        raise LineageError(f"{title} is no checkpoint: its kind is {record.kind}", hint="name a stage, or `base`")
    if record.kind == "training" and not subfolder:
        known = ", ".join(f"{record.stage}@{step}" for step in steps_of(record))
        raise LineageError(f"{title} is a training with several checkpoints", hint=f"name one: {known}")
    return record.stage


def _chosen(recipe: Recipe, stage: str, benchmarks: Sequence[str]) -> list[str]:
    for name in benchmarks:
        if name not in recipe.benchmarks:
            hint = nearest(name, recipe.benchmarks)
            raise ConfigError(f"there is no benchmark {name!r}", where="--benchmark", hint=hint)
    if benchmarks:
        return list(dict.fromkeys(benchmarks))
    asking = next(iter(recipe.stages), stage) if stage == "base" else stage  # the base is compared with its child
    if asking not in recipe.stages:
        raise ConfigError(f"the recipe has no stage {asking!r} to say what to measure", hint="--benchmark NAME")
    evaluation = recipe.stages[asking].evaluation
    names = list(dict.fromkeys([*evaluation.targets, *evaluation.guardrails]))
    if not names:
        raise ConfigError("names no benchmark", where=f"stages.{asking}.evaluation", hint="--benchmark NAME")
    return names


def _measured(recipe: Recipe, ref: Ref, stage: str, title: str, benchmark: str) -> Step:
    inside = [f"step-{ref.step}"] if ref.subfolder else []
    name = check_name("/".join(["evals", stage, *inside, benchmark]))
    step = scores_step(recipe, name, f"{title}: {benchmark}", stage, CHECKPOINT, [benchmark])
    return replace(step, config={**step.config, "candidate_step": ref.step}) if ref.subfolder else step
