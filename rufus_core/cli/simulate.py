"""`rufus simulate`: where the GPUs of an RL stage would wait, by number of nodes. Needs no GPU and starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from rufus_core.cli.output import chosen, console, print_json
from rufus_core.cli.parts import Home, Overrides, Profile, RecipeFile, Shared, open_home
from rufus_core.errors import ConfigError

if TYPE_CHECKING:
    from rufus_core.recipe.simulation.episodes import DrawnEpisode
    from rufus_core.recipe.simulation.report import Simulated


def simulate(
    stage: Annotated[str, typer.Argument(help="An RL stage of the recipe.")],
    nodes: Annotated[str, typer.Option(metavar="N,N", help="Counts of nodes to compare.")] = "8,16,32",
    train_nodes: Annotated[
        int, typer.Option(min=0, metavar="N", help="How many of them only train; 0: all do both, in turns.")
    ] = 0,
    step: Annotated[int, typer.Option(min=1, metavar="N", help="A step of the stage, whose phases may differ.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of lengths, filters and failures.")] = 0,
    rollouts: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Take episodes of this checkpoint's training.")
    ] = None,
    assumptions: Annotated[str, typer.Option(help="A name of deployments/assumptions, or a file.")] = "h200",
    assume: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Change an assumption; may be given again.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a figure here, as PNG.")] = None,
    profile: Profile = "h200",
    recipe: RecipeFile = "rufus_air",
    set_: Overrides = None,
    home: Home = None,
    shared: Shared = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Simulate one synchronous step of an RL stage: weights to the engines, rollout, training.

    Nothing here is measured on a GPU: numbers follow from the recipe and from what `deployments/assumptions` states.
    """
    from rufus_core.recipe.load import load_recipe
    from rufus_core.recipe.simulation.assumptions import load_assumptions
    from rufus_core.recipe.simulation.published import printed_flops_share
    from rufus_core.recipe.simulation.report import Simulated, as_json
    from rufus_core.recipe.simulation.scenario import step_model
    from rufus_core.recipe.simulation.step import simulate_step

    counts = _counts(nodes)
    if figure is not None and not figure.absolute().parent.is_dir():
        raise ConfigError("there is no such folder", where=f"--figure {figure}", hint="make it, or name another one")
    settings, assumed = load_recipe(recipe, profile, set_ or ()), load_assumptions(assumptions, assume or ())
    recorded = _recorded(rollouts, home, shared) if rollouts is not None else []
    models = [
        step_model(settings, stage, assumed, count, train_nodes=train_nodes, step=step, seed=seed, recorded=recorded)
        for count in counts
    ]
    told = [Simulated(count, train_nodes, simulate_step(model)) for count, model in zip(counts, models, strict=True)]
    printed = printed_flops_share(settings)
    if figure is not None:
        from rufus_core.recipe.simulation.figure import draw_steps

        draw_steps(told, f"A simulated step of {stage}, profile {settings.profile}", figure)
    if json_:
        print_json(
            {
                "recipe": settings.name,
                "profile": settings.profile,
                "stage": stage,
                "step": step,
                "seed": seed,
                "recorded_episodes": len(recorded),
                "printed_flops_share": printed,
                "assumptions": assumed.model_dump(mode="json"),
                "simulated": [as_json(each) for each in told],
            }
        )
        return
    _print(stage, told, assumed.trainer.flops_share, printed)
    if figure is not None:
        typer.echo(f"figure: {figure}")


def _counts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ConfigError(f"{text!r} is no list of node counts", where="--nodes", hint="for example --nodes 8,16,32")
    return [int(part) for part in parts]


def _recorded(name: str, home: Path | None, shared: str | None) -> list[DrawnEpisode]:
    from rufus_core.lineage.sharing import fetch
    from rufus_core.lineage.trainings import training_of
    from rufus_core.recipe.simulation.recorded import recorded_episodes

    _, store = open_home(home, shared)
    return recorded_episodes(fetch(store, training_of(store, chosen(store, name).record)))


def _print(stage: str, told: Sequence[Simulated], assumed_share: float, printed: float | None) -> None:
    first = told[0].result.rollout
    drawn = [each.episode for each in first.episodes]
    mean = sum(episode.num_tokens for episode in drawn) / len(drawn)
    cut = sum(episode.truncated for episode in drawn) / len(drawn)
    title = (
        f"One step of {stage}: {len(drawn):,} episodes of {mean:,.0f} tokens, {cut:.1%} cut off; "
        f"{len(first.trained):,} trained on"
    )
    out = console()
    out.print(title)
    out.print(_seconds(told))
    out.print(_shares(told))
    if printed is not None:
        beside = f"assumed; the printed hours of an SFT epoch come to {printed:.1%}"
        typer.echo(f"training: at {assumed_share:.1%} of the peak, {beside}")
    typer.echo("idle: gap (an engine waits for tools), tail (it has nothing left in a round), down (it failed),")
    typer.echo("other (trainers for the rollout, or engines for the training). --json shows what is assumed.")


def _seconds(told: Sequence[Simulated]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title="Seconds", title_justify="left", header_style="bold")
    for column in ("nodes", "engines", "update", "rollout", "its last tenth", "train", "step", "GPU-hours"):
        table.add_column(column, justify="right")
    table.add_column("tokens/s/GPU", justify="right")
    for each in told:
        result = each.result
        rollout_gpus = result.num_gpus - result.train_gpus
        numbers = (
            *(result.update_seconds, result.rollout_seconds, result.slowest_seconds, result.train_seconds),
            *(result.seconds, result.gpu_time.total / 3600),
            result.rollout.drawn_tokens / (result.rollout_seconds * rollout_gpus),
        )
        table.add_row(str(each.nodes), str(len(result.rollout.engines)), *(f"{number:,.0f}" for number in numbers))
    return table


def _shares(told: Sequence[Simulated]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title="GPU time, %", title_justify="left", header_style="bold")
    kinds = ("update", "decode", "prefill", "train", "gap", "tail", "down", "other_side")
    for column in ("nodes", *kinds[:-1], "other", "idle"):
        table.add_column(column, justify="right")
    for each in told:
        time = each.result.gpu_time
        numbers = [*(time.kinds()[kind] for kind in kinds), time.idle]
        table.add_row(str(each.nodes), *(f"{100 * abs(seconds) / time.total:.1f}" for seconds in numbers))
    return table
