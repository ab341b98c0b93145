"""The graphs of `rufus problems`: one stage's problem set, and its screens by the recipe's policy or by another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rufus_core.errors import ConfigError, LineageError
from rufus_core.lineage.record import CHECKPOINT_KINDS
from rufus_core.lineage.resolve import Ref, steps_of
from rufus_core.recipe.filters import screens_of
from rufus_core.recipe.graph import build_graph, screen_step
from rufus_core.recipe.step import Step
from rufus_core.recipe.until import closure
from rufus_core.recipe.validate import nearest
from rufus_core.settings import POLICY, FilterSettings, Recipe, RLStage

GIVEN = "policy"  # the step that stands for a policy that the user names
USUAL = {"learnability": FilterSettings(samplers=(POLICY,), num_attempts=4, low_exclusive=0.0, high_inclusive=0.8)}


def data_graph(recipe: Recipe, stage: str) -> list[Step]:
    """What the problem set of `stage` is made from, itself last.

    Raises:
        ConfigError: the recipe has no such stage, or can't be run here.
        DataError: a data file of the user's is missing or can't be read.
    """
    _require(recipe, stage)
    return _made_from(build_graph(recipe), [f"data/{stage}"])


def screen_graph(
    recipe: Recipe, stage: str, policy: Ref | None = None, num_attempts: int | None = None
) -> tuple[list[Step], list[str]]:
    """The stage's screens in their order with all that they are made from; and the screens' names.

    As the recipe has them they are its own steps, `screens/<stage>/<filter>`. With another policy or another number of
    attempts those that use the policy are `rescreens/<stage>/<filter>`, so that no run mistakes them for its own; so is
    `USUAL` where the recipe screens nothing.

    Args:
        policy: takes the place of the stage's initial checkpoint.
        num_attempts: of each problem, in place of the recipe's.

    Raises:
        ConfigError: as `data_graph`, or the stage samples nothing.
        LineageError: `policy` is no checkpoint.
    """
    _require(recipe, stage)
    settings = recipe.stages[stage]
    if not isinstance(settings, RLStage):
        raise ConfigError(f"{stage} plays no problems, so that nothing screens them", hint="name an RL stage")
    graph = build_graph(recipe)
    given = [] if policy is None else [_given(policy)]
    problems, steps = f"data/{stage}", list[Step]()
    own = screens_of(settings)
    for key, each in (own or USUAL).items():
        ours = POLICY in each.samplers and (policy is not None or num_attempts not in (None, each.num_attempts))
        if num_attempts is not None and ours:
            each = each.model_copy(update={"num_attempts": num_attempts})
        step = screen_step(recipe, stage, settings, key, each, problems)
        if ours or not own:
            # Nobody trains on what it leaves, so that it may be nothing.
            step = replace(step, name=f"rescreens/{stage}/{key}", config=step.config | {"may_be_empty": True})
        if policy is not None and POLICY in each.samplers:
            config = step.config | ({"candidate_step": policy.step} if policy.subfolder else {})
            step = replace(step, inputs=step.inputs | {"policy": GIVEN}, config=config)
        steps.append(step)
        problems = step.name
    others = [step for step in graph if step.name not in {each.name for each in steps}]
    whole = [*others, *given, *steps]
    return _made_from(whole, [step.name for step in steps]), [step.name for step in steps]


def _given(policy: Ref) -> Step:
    """A checkpoint of the store in place of a step."""
    record = policy.record
    if record.kind == "training" and not policy.subfolder:
        known = ", ".join(f"{record.stage}@{step}" for step in steps_of(record))
        raise LineageError(f"{record.id} is a training with several checkpoints", hint=f"name one: {known}")
    if record.kind not in (*CHECKPOINT_KINDS, "training"):
        raise LineageError(f"{record.id} is no checkpoint: its kind is {record.kind}", hint="name a stage, or `base`")
    return Step(GIVEN, record.kind, "policy", {}, stage=record.stage, artifact=record)


def _made_from(graph: Sequence[Step], names: Sequence[str]) -> list[Step]:
    wanted = closure(names, {step.name: step for step in graph})
    return [step for step in graph if step.name in wanted]


def _require(recipe: Recipe, stage: str) -> None:
    if stage not in recipe.stages:
        raise ConfigError(f"there is no stage {stage!r}", hint=nearest(stage, recipe.stages))
