"""`rufus run`: from data to checkpoints and their scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    from rufus_core.cli.orchestration import carry_out
    from rufus_core.cli.output import console
    from rufus_core.lineage.home import rufus_home, store_root
    from rufus_core.lineage.store import Store
    from rufus_core.recipe.graph import build_graph
    from rufus_core.recipe.load import load_recipe
    from rufus_core.recipe.until import up_to

    settings = load_recipe(recipe, profile, set_ or [])
    graph = up_to(build_graph(settings), until)
    place, out = rufus_home(home), console()
    outcome = carry_out(settings, graph, place, out)

    from rufus_core.cli.summary import show_summary  # matplotlib

    show_summary(settings, graph, outcome, place, Store(store_root(place)), out)
