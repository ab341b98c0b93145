"""`rufus run`: from data to checkpoints and their scores."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from rufus_core.errors import JobFailed, RufusError
from rufus_core.ports import RunOutcome

INTERRUPTED = 130  # 128 + SIGINT, as shells count it


def run(
    profile: Annotated[str, typer.Option(help="Where it runs: a name of deployments/profiles, or a file.")] = "cpu",
    recipe: Annotated[str, typer.Option(help="A name of deployments/recipes, or a file.")] = "rufus_air",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be given again.")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="Home of the runs; by default RUFUS_HOME, else .rufus.")] = None,
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="Stop after this stage.")] = None,
) -> None:
    """Run the recipe. Steps whose artifacts are intact are reused, so the same command goes on after a stop."""
    from rufus_core.cli.orchestration import load_orchestrator
    from rufus_core.cli.output import console
    from rufus_core.cli.preflight import preflight
    from rufus_core.cli.progress import RunDisplay
    from rufus_core.lineage.home import rufus_home, store_root
    from rufus_core.lineage.store import Store
    from rufus_core.recipe.graph import build_graph
    from rufus_core.recipe.load import load_recipe
    from rufus_core.recipe.until import up_to

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # means the same as Ctrl-C
    settings = load_recipe(recipe, profile, set_ or [])
    graph = up_to(build_graph(settings), until)
    place = rufus_home(home)
    preflight(settings, graph, place)
    out = console()
    try:
        place.mkdir(parents=True, exist_ok=True)
        with RunDisplay(graph, out) as display:
            outcome = load_orchestrator().run(settings, graph, place, display)
    except OSError as error:
        raise RufusError(f"the run stopped: {error.strerror or error}", where=error.filename) from error
    if outcome.interrupted:
        typer.echo("Stopped. Finished steps are kept: type `rufus run` to go on.", err=True)
        raise typer.Exit(INTERRUPTED)
    _raise_failure(outcome)

    from rufus_core.cli.summary import show_summary  # matplotlib

    show_summary(settings, graph, outcome, place, Store(store_root(place)), out)


def _raise_failure(outcome: RunOutcome) -> None:
    for step in outcome.steps.values():
        if step.status == "failed":
            log = f"its output is in {step.log}" if step.log and step.log.exists() else None
            raise JobFailed(step.error, hint=log)
