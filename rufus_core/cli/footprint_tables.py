"""Tables of what stages take of GPUs and services."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from rufus_core.cli.output import titled_table
from rufus_core.recipe.footprint.gpus import ASSUMPTIONS, GB
from rufus_core.recipe.footprint.phases import PhaseFootprint
from rufus_core.recipe.footprint.services import Calls
from rufus_core.recipe.footprint.stage import StageFootprint
from rufus_core.recipe.plan import Plan
from rufus_core.settings import LayoutSettings

NOTHING = "-"
Footprints = list[tuple[str, StageFootprint]]


def footprint_tables(plan: Plan) -> Iterator[Table]:
    """None where no stage has GPUs; of services only where one is asked for anything."""
    found = [(stage.name, stage.footprint) for stage in plan.stages if stage.footprint is not None]
    if not found:
        return
    yield _training(found)
    if any(footprint.engine for _, footprint in found):
        yield _engines(found)
    if any(footprint.phases for _, footprint in found):
        yield _steps(found)
    if any(phase.calls.any for _, footprint in found for phase in footprint.phases):
        yield _services(found)


def _training(found: Footprints) -> Table:
    sizes = sorted({(footprint.gpu, footprint.gpu_bytes) for _, footprint in found})
    gpus = ", ".join(f"{name}, {size / GB:,.0f} GB" for name, size in sizes)
    title = f"Training: GB of the fullest GPU ({gpus}; {ASSUMPTIONS.reserve_bytes / GB:g} stay free)"
    terms = ("weights", "gradients", "optimizer", "reference", "activations", "logits")
    columns = ("stage", "cut", "copies", *terms, "all")
    table = titled_table(title, columns, ("copies", *terms, "all"))
    for name, footprint in found:
        memory = footprint.training
        copies = f"{footprint.ranks.data}"
        if footprint.layout.expert_parallel > 1:
            copies += f", {footprint.ranks.expert_data}"
        values = [_gb(getattr(memory, term)) for term in terms]
        table.add_row(name, _cut(footprint.layout), copies, *values, _gb(memory.total))
    return table


def _cut(layout: LayoutSettings) -> str:
    """For example `TP8 EP32`, as the field writes it."""
    parts = {
        "TP": layout.tensor_parallel,
        "PP": layout.pipeline_parallel,
        "EP": layout.expert_parallel,
        "CP": layout.context_parallel,
    }
    return " ".join(f"{name}{size}" for name, size in parts.items() if size > 1) or "whole"


def _engines(found: Footprints) -> Table:
    columns = ("stage", "engines x GPUs", "weights", "trainer", "KV cache", "tokens", "sequences", "tokens/s of all")
    title = "Rollouts: GB of a GPU; tokens and sequences that an engine holds at once"
    table = titled_table(title, columns, columns[1:])
    for name, footprint in found:
        engine = footprint.engine
        if engine is None:
            continue
        rollout = footprint.phases[0].rollout if footprint.phases else None
        table.add_row(
            name,
            f"{engine.engines} x {engine.gpus}",
            _gb(engine.memory.weights),
            _gb(engine.memory.trainer),
            _gb(engine.memory.kv_cache),
            f"{engine.cache_tokens:,.0f}",
            NOTHING if rollout is None else f"{rollout.running:,.0f}",
            NOTHING if rollout is None else f"{rollout.tokens_per_second:,.0f}",
        )
    return table


def _steps(found: Footprints) -> Table:
    columns = ("stage", "sampled", "tokens", "rollout", "bound by", "log-probs", "train", "all", "GPU-hours", "price")
    title = (
        f"A step in seconds, by a roofline at {ASSUMPTIONS.flops_share:.0%} of peak FLOP/s and "
        f"{ASSUMPTIONS.bandwidth_share:.0%} of bandwidth"
    )
    table = titled_table(title, columns, [column for column in columns if column not in ("stage", "bound by")])
    for name, footprint in found:
        for index, phase in enumerate(footprint.phases):
            run = footprint.run if index == 0 else None
            table.add_row(
                name if index == 0 else f"  step {phase.from_step} on",
                *_step(phase),
                NOTHING if run is None else f"{run.gpu_hours:,.0f}",
                NOTHING if run is None or run.gpu_price is None else f"{run.gpu_price:,.0f}",
            )
    return table


def _step(phase: PhaseFootprint) -> tuple[str, ...]:
    rollout = phase.rollout
    return (
        f"{phase.sampled:,.0f}" if phase.sampled else NOTHING,
        f"{phase.tokens / 1e6:,.1f}M",
        NOTHING if rollout is None else f"{rollout.seconds:,.0f}",
        NOTHING if rollout is None else rollout.bound,
        f"{phase.logprob_seconds:,.0f}" if rollout else NOTHING,
        f"{phase.train_seconds:,.0f}",
        f"{phase.seconds:,.0f}",
    )


def _services(found: Footprints) -> Table:
    columns = ("stage", "sandboxes", "test runs", "judge calls", "searches", "pages", "page tokens", "run at")
    table = titled_table("Services that a step asks, and list price of the run", columns, columns[1:])
    for name, footprint in found:
        if not footprint.phases or not footprint.phases[0].calls.any:
            continue
        price = footprint.run.service_price if footprint.run else None
        calls = footprint.phases[0].calls
        counts = [f"{count:,.0f}" if (count := getattr(calls, kind)) else NOTHING for kind in Calls.model_fields]
        table.add_row(name, *counts, NOTHING if price is None else f"{price:,.0f}")
    return table


def _gb(count: float) -> str:
    return f"{count / GB:,.1f}" if count else NOTHING
