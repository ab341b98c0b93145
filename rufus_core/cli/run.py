"""`rufus run`: from data to checkpoints and their scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rufus_core.cli.parts import Force, From, Only, Until


def run(
    profile: Annotated[str, typer.Option(help="Where it runs: a name of deployments/profiles, or a file.")] = "cpu",
    recipe: Annotated[str, typer.Option(help="A name of deployments/recipes, or a file.")] = "rufus_air",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be given again.")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="Home of the runs; by default RUFUS_HOME, else .rufus.")] = None,
    until: Until = None,
    from_: From = None,
    only: Only = None,
    force: Force = None,
) -> None:
    """Run the recipe. Steps whose artifacts are intact are reused, so the same command goes on after a stop.

    `--from` and `--only` take the checkpoints above as they are, also if the recipe has changed since. `rufus plan`
    with the same options says what would be made, and why.
    """
    from rufus_core.cli.orchestration import carry_out
    from rufus_core.cli.output import console
    from rufus_core.lineage.home import rufus_home, store_root
    from rufus_core.lineage.store import Store
    from rufus_core.recipe.graph import build_graph
    from rufus_core.recipe.load import load_recipe
    from rufus_core.recipe.until import part

    settings = load_recipe(recipe, profile, set_ or [])
    place, out = rufus_home(home), console()
    store = Store(store_root(place))
    graph = part(build_graph(settings), store, until=until, start=from_, only=only, force=force)
    for step in graph:
        if step.artifact is not None:
            taken = step.artifact
            out.print(f"on {taken.name} {taken.digest[:12]} of {taken.published:%Y-%m-%d %H:%M} UTC", soft_wrap=True)
    outcome = carry_out(settings, graph, place, out)

    from rufus_core.cli.summary import show_summary  # matplotlib

    show_summary(settings, graph, outcome, place, store, out)
