"""`rufus plan`: what a recipe would run, and what of it is in the store. Needs no GPU and starts nothing."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rufus_core.cli.footprint_tables import footprint_tables
from rufus_core.cli.output import console, print_json, titled_table, warn_of_clocks
from rufus_core.cli.parts import Force, From, Home, Only, Overrides, Profile, RecipeFile, Shared, Until, open_home
from rufus_core.cli.steps import print_steps
from rufus_core.errors import ConfigError, DataError
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.phases import PhasePlan
from rufus_core.recipe.plan import Plan, StagePlan, make_plan
from rufus_core.recipe.status import graph_status
from rufus_core.recipe.until import part

NOT_STATED = "not stated"


def plan(
    profile: Profile = "cpu",
    recipe: RecipeFile = "rufus_air",
    set_: Overrides = None,
    home: Home = None,
    shared: Shared = None,
    until: Until = None,
    from_: From = None,
    only: Only = None,
    force: Force = None,
    steps: Annotated[bool, typer.Option("--steps", help="Show every step of a run, and nothing else.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what a recipe would run: stages, batches, budgets, data, filters and cost; and which steps are done.

    Of the steps, those are shown that `rufus run` would make: `stale` ones with the settings and inputs that differ
    from what is in the store. Seconds are those of the last time, added up as if one step ran after another.
    """
    settings = load_recipe(recipe, profile, set_ or ())
    result, refusal, status = make_plan(settings), None, None
    try:
        graph = build_graph(settings)
    except (ConfigError, DataError) as error:  # the plan of a recipe that can't be run here is a plan all the same
        if steps:
            raise
        refusal = str(error)
    else:
        _, store = open_home(home, shared, cached=True)
        chosen = part(graph, store, until=until, start=from_, only=only, force=force)
        warn_of_clocks(chosen)
        status = graph_status(chosen, store)
    if json_:
        told = None if status is None else status.model_dump(mode="json")
        print_json({**result.model_dump(mode="json"), "run": told, "refusal": refusal})
        return
    out = console()
    if not steps:
        _print_recipe(result, out)
        out.print()
    if status is not None:
        print_steps(status, out, every=steps)
    else:
        out.print(Text(f"`rufus run` would refuse this: {refusal}"))


def _print_recipe(result: Plan, out: Console) -> None:
    out.print(Text(f"recipe {result.recipe}, profile {result.profile}, seed {result.seed}, base {result.base}"))
    for table in (_batches(result), _runs(result), *footprint_tables(result), _data(result)):
        out.print()
        out.print(table)
    out.print()
    for check in result.checks:
        out.print(Text(f"{'ok ' if check.ok else 'BAD'} {check.stage}: {check.text}", style="" if check.ok else "red"))
    if result.pins:
        out.print(Text("pins: " + ", ".join(f"{name} {version}" for name, version in result.pins.items())))


def _batches(plan: Plan) -> Table:
    columns = ("stage", "nodes", "GPUs", "algorithm", "lr", "prompts x samples", "/step", "opt", "budget", "episode")
    title = "Batches: sequences of a rollout and of an optimizer step; tokens of a response and of an episode"
    table = titled_table(title, columns, ("nodes", "GPUs", "/step", "opt", "budget", "episode"))
    for stage in plan.stages:
        first, *later = stage.phases
        nodes = f"{stage.nodes}+{stage.extra_nodes}" if stage.extra_nodes else str(stage.nodes)
        table.add_row(stage.name, nodes, str(stage.gpus), stage.algorithm, _rates(stage), *_phase(first, stage))
        for phase in later:
            table.add_row(
                f"  step {phase.from_step} on", "", "", f"  KL {_rate(phase.kl_coef)}", "", *_phase(phase, stage)
            )
    return table


def _phase(phase: PhasePlan, stage: StagePlan) -> tuple[str, ...]:
    product = f"{phase.prompts} x {phase.samples} = " if phase.prompts is not None else ""
    return (
        f"{product}{phase.sequences:,}",
        f"{phase.sequences_per_step:,.10g}",
        "-" if phase.opt_steps is None else str(phase.opt_steps),
        f"{phase.budget_tokens:,}",
        "-" if stage.trajectory_tokens is None else f"{stage.trajectory_tokens:,}",
    )


def _rates(stage: StagePlan) -> str:
    peak = _rate(stage.lr_peak)
    return peak if stage.schedule == "constant" else f"{peak} -> {_rate(stage.lr_min)}"


def _rate(value: float | None) -> str:
    """For example 1.5e-6, as the paper writes its rates."""
    if not value:
        return "0"
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _runs(plan: Plan) -> Table:
    columns = ("stage", "parent", "steps", "carried forward", "GPU-hours", "targets; guardrails")
    table = titled_table("Runs", columns, ("steps", "GPU-hours"))
    for stage in plan.stages:
        cost, benchmarks = stage.cost, ", ".join(stage.targets)
        if stage.guardrails:
            benchmarks += f"; {', '.join(stage.guardrails)}"
        hours = NOT_STATED if cost.gpu_hours is None else f"{cost.gpu_hours:,.0f}"
        if cost.price is not None:
            hours += f" at {cost.price:,.0f}"
        table.add_row(
            stage.name,
            stage.parent,
            NOT_STATED if stage.steps is None else f"{stage.steps:,}",
            stage.selection,
            hours if stage.gpus else "-",
            benchmarks,
        )
    return table


def _data(plan: Plan) -> Table:
    columns = ("stage", "rows", "tokens", "sources", "offline filters; online: window of the group mean")
    table = titled_table("Data and filters", columns, ("rows", "tokens"))
    for stage in plan.stages:
        data = stage.data
        rows = data.num_rows if data.published_rows is None else data.published_rows
        filters = [*data.filters, f"online: {data.online_filter}" if data.online_filter else ""]
        restricted = sum(source.restricted for source in data.sources)
        names = ", ".join(source.name for source in data.sources)
        if len(data.sources) > 6:
            names = f"{len(data.sources)} sources"
        table.add_row(
            stage.name,
            NOT_STATED if rows is None else f"{rows:,}",
            "-" if data.published_tokens is None else f"{data.published_tokens:,}",
            names + (f" ({restricted} restricted)" if restricted else ""),
            "; ".join(text for text in filters if text) or "-",
        )
    return table
