"""`rufus run`: from data to checkpoints and their scores."""

from __future__ import annotations

from rufus_core.cli.parts import Force, From, Home, Only, Overrides, Profile, RecipeFile, Shared, Until, open_home


def run(
    profile: Profile = "cpu",
    recipe: RecipeFile = "rufus_air",
    set_: Overrides = None,
    home: Home = None,
    shared: Shared = None,
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
    from rufus_core.cli.output import console, warn_of_clocks
    from rufus_core.recipe.graph import build_graph
    from rufus_core.recipe.load import load_recipe
    from rufus_core.recipe.until import part

    settings = load_recipe(recipe, profile, set_ or [])
    (place, store), out = open_home(home, shared), console()
    graph = part(build_graph(settings), store, until=until, start=from_, only=only, force=force)
    warn_of_clocks(graph)
    for step in graph:
        if step.artifact is not None:
            taken = step.artifact
            out.print(f"on {taken.name} {taken.digest[:12]} of {taken.published:%Y-%m-%d %H:%M} UTC", soft_wrap=True)
    outcome = carry_out(settings, graph, place, out)

    from rufus_core.cli.summary import show_summary  # matplotlib

    show_summary(settings, graph, outcome, place, store, out)
