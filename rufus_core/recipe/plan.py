"""What a recipe would run, as data: no GPU, no torch, no files besides the recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rufus_core.recipe.footprint.gpus import ASSUMPTIONS
from rufus_core.recipe.footprint.stage import StageFootprint, stage_footprint
from rufus_core.recipe.phases import PhasePlan, phases_of
from rufus_core.settings import FilterSettings, PriceSettings, ProblemSettings, Recipe, RLStage, SFTStage, window_text
from rufus_core.types import Frozen, Json

HOURS_PER_DAY = 24


class SourcePlan(Frozen):
    name: str
    origin: str  # generator, file or data set; empty where a run must be told
    count: int | None
    terms: str | None
    restricted: bool


class DataPlan(Frozen):
    """Counts as planned (`num_rows`) and as the paper prints them after its filters (`published_*`)."""

    sources: tuple[SourcePlan, ...]
    num_rows: int | None  # None where a source is taken whole
    published_rows: int | None
    published_tokens: int | None  # loss-carrying for SFT, of prompts for RL
    num_validation: int
    num_heldout: int
    filters: tuple[str, ...]
    online_filter: str | None


class CostPlan(Frozen):
    """By the printed wall clock; `gpu_hours` is None where the paper states none. A footprint has the expected ones."""

    gpu_hours: float | None
    node_days: float | None
    published_node_days: float | None
    price: float | None  # in the currency of `gpu_hour_price`


class StagePlan(Frozen):
    name: str
    title: str
    section: str
    parent: str
    kind: str
    reward: str | None
    nodes: int
    extra_nodes: int
    extra_nodes_role: str | None
    gpus: int
    algorithm: str
    lr_peak: float
    lr_min: float
    schedule: str
    phases: tuple[PhasePlan, ...]  # the first is the stage's own batch
    trajectory_tokens: int | None
    steps: int | None
    epochs: float | None
    selection: str
    targets: tuple[str, ...]
    guardrails: tuple[str, ...]
    data: DataPlan
    cost: CostPlan
    footprint: StageFootprint | None  # None without GPUs, or where nothing says what is trained


class Check(Frozen):
    """One line of arithmetic on the recipe. `ok` is False where it doesn't come out even."""

    stage: str
    text: str
    ok: bool


class Plan(Frozen):
    recipe: str
    profile: str
    seed: int
    base: str
    stages: tuple[StagePlan, ...]
    checks: tuple[Check, ...]
    pins: dict[str, str]


def make_plan(recipe: Recipe) -> Plan:
    """The plan of a valid recipe.

    Raises:
        ConfigError: a stage's layout can't be cut over its GPUs, or needs more memory than they have.
    """
    stages = tuple(_stage(recipe, name, stage) for name, stage in recipe.stages.items())
    return Plan(
        recipe=recipe.name,
        profile=recipe.profile,
        seed=recipe.seed,
        base=recipe.base.name,
        stages=stages,
        checks=tuple(check for stage in stages for check in _checks(stage, recipe.stages[stage.name], recipe.prices)),
        pins=recipe.pins,
    )


def _stage(recipe: Recipe, name: str, stage: SFTStage | RLStage) -> StagePlan:
    compute, optimizer, rl = stage.compute, stage.optimizer, isinstance(stage, RLStage)
    return StagePlan(
        name=name,
        title=stage.title,
        section=stage.section,
        parent=stage.parent,
        kind=stage.kind,
        reward=stage.reward.kind if stage.reward else None,
        nodes=compute.nodes,
        extra_nodes=compute.extra_nodes,
        extra_nodes_role=compute.extra_nodes_role,
        gpus=compute.nodes * compute.gpus_per_node,
        algorithm=_algorithm(stage),
        lr_peak=optimizer.lr_peak,
        lr_min=optimizer.lr_peak if optimizer.lr_min is None else optimizer.lr_min,
        schedule=optimizer.schedule,
        phases=tuple(phases_of(stage)),
        trajectory_tokens=stage.rollout.trajectory_tokens if isinstance(stage, RLStage) else None,
        steps=stage.run.steps,
        epochs=stage.run.epochs,
        selection=_selection(stage),
        targets=stage.evaluation.targets,
        guardrails=stage.evaluation.guardrails,
        data=_data(stage.problems if isinstance(stage, RLStage) else stage.data, stage, rl),
        cost=_cost(recipe, stage),
        footprint=stage_footprint(recipe, name),
    )


def _algorithm(stage: SFTStage | RLStage) -> str:
    if isinstance(stage, SFTStage):
        return "cross-entropy"
    return f"{stage.algorithm.name}{' mean-only' if stage.algorithm.advantage == 'mean_only' else ''}"


def _selection(stage: SFTStage | RLStage) -> str:
    select = stage.run.select
    text = {"last": "last", "step": f"step {select.step}", "peak": f"peak {select.metric or 'validation'}"}[select.rule]
    printed = _number(stage.published, "run", "shipped_checkpoint")
    return f"{text} (printed: step {printed:g})" if select.rule == "peak" and printed is not None else text


def _data(settings: ProblemSettings, stage: SFTStage | RLStage, rl: bool) -> DataPlan:
    sources = tuple(
        SourcePlan(
            name=name,
            origin=source.path or source.generator or source.hf_id or "",
            count=source.count,
            terms=source.terms,
            restricted=source.restricted,
        )
        for name, source in settings.sources.items()
    )
    counts = [source.count for source in settings.sources.values() if source.count is not None]
    rows = _number(stage.published, "data", "prompts" if rl else "samples")
    tokens = _number(stage.published, "data", "prompt_tokens" if rl else "train_tokens")
    return DataPlan(
        sources=sources,
        num_rows=sum(counts) if len(counts) == len(sources) else None,
        published_rows=None if rows is None else int(rows),
        published_tokens=None if tokens is None else int(tokens),
        num_validation=settings.num_validation,
        num_heldout=settings.num_heldout,
        filters=tuple(_filter(name, screen) for name, screen in settings.filters.items()),
        online_filter=_online_filter(stage),
    )


def _filter(name: str, screen: FilterSettings) -> str:
    """For example `learnability: 0 < p <= 0.8 (policy, n=16)`."""
    if not screen.samplers:
        return name
    how = f"{' or '.join(screen.samplers)}, n={screen.num_attempts}{'' if screen.tools else ', no tools'}"
    return f"{name}: {screen.window()} ({how})"


def _online_filter(stage: SFTStage | RLStage) -> str | None:
    if isinstance(stage, SFTStage) or stage.dynamic_sampling is None:
        return None
    sampling = stage.dynamic_sampling
    window = window_text(sampling.low_exclusive, sampling.high_inclusive, sampling.high_exclusive, "mean")
    return f"{window}, oversample x{sampling.oversample_factor:g}"


def _cost(recipe: Recipe, stage: SFTStage | RLStage) -> CostPlan:
    """GPU-hours follow from a printed wall clock only: SFT's hours per epoch (SFT-11)."""
    nodes, gpus_per_node = stage.compute.nodes, stage.compute.gpus_per_node
    hours_per_epoch, epochs = stage.compute.wall_clock.get("hours_per_epoch"), stage.run.epochs
    hours = hours_per_epoch * epochs if hours_per_epoch and epochs and gpus_per_node else None
    gpu_hours = None if hours is None else hours * nodes * gpus_per_node
    return CostPlan(
        gpu_hours=gpu_hours,
        node_days=None if hours is None else hours * nodes / HOURS_PER_DAY,
        published_node_days=_number(stage.published, "compute", "wall_clock", "node_days_approx"),
        price=None if gpu_hours is None or recipe.gpu_hour_price is None else gpu_hours * recipe.gpu_hour_price,
    )


def _checks(plan: StagePlan, stage: SFTStage | RLStage, prices: PriceSettings) -> Iterator[Check]:
    def check(text: str, ok: bool) -> Check:
        return Check(stage=plan.name, text=text, ok=ok)

    for phase in plan.phases:
        if phase.opt_steps is not None:
            when = f" from step {phase.from_step}" if phase.from_step > 1 else ""
            size = _count(phase.sequences_per_step)
            text = f"{phase.prompts} x {phase.samples} / {phase.opt_steps} = {size} sequences per optimizer step{when}"
            yield check(text, phase.sequences % phase.opt_steps == 0)
        if plan.steps is not None and phase.from_step > plan.steps:
            yield check(f"a phase starts at step {phase.from_step}, after the last step {plan.steps}", False)
    if isinstance(stage, RLStage) and stage.dynamic_sampling is not None:
        prompts, factor = stage.rollout.prompts_per_rollout, stage.dynamic_sampling.oversample_factor
        text = f"{prompts} x {factor:g} = {_count(prompts * factor)} prompts sampled to keep {prompts}"
        yield check(text, prompts * factor % 1 == 0)
    if plan.steps is not None and stage.run.select.rule == "step" and stage.run.select.step is not None:
        chosen = stage.run.select.step
        yield check(f"step {chosen} of {plan.steps:,} is carried forward", chosen <= plan.steps)
    if plan.cost.node_days is not None:
        hours, days = stage.compute.wall_clock["hours_per_epoch"], plan.cost.node_days
        printed = plan.cost.published_node_days
        note = f" (printed: about {_count(printed)})" if printed is not None else ""
        yield check(f"{hours:g} h x {plan.epochs:g} epochs x {plan.nodes} nodes = {_count(days)} node-days{note}", True)
    if plan.footprint is not None and prices.sandboxes is not None:
        most = max((phase.calls.sandboxes for phase in plan.footprint.phases), default=0.0)
        if most:
            yield check(f"{most:,.0f} sandboxes at once of {prices.sandboxes:,}", most <= prices.sandboxes)
    if plan.footprint is not None and plan.footprint.printed is not None:
        pace = plan.footprint.printed
        yield check(
            f"{pace.tokens / 1e9:.1f}B tokens in {pace.hours:g} h on {pace.gpus} GPUs: {pace.tokens_per_second:,.0f} "
            f"tokens/s and {pace.flops_per_second / 1e12:.1f} TFLOP/s each, {pace.mfu:.1%} of the peak, as printed; "
            f"the plan assumes {ASSUMPTIONS.flops_share:.0%}",
            True,
        )


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def _number(facts: Mapping[str, Json], *path: str) -> float | None:
    """A published number, or None where it isn't there."""
    value: Json = facts
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
