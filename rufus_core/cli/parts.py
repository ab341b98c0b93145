"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[Path | None, typer.Option(help="Home of the runs; by default RUFUS_HOME, else .rufus.")]

# The recipe.
Profile = Annotated[str, typer.Option(help="Where it runs: a name of deployments/profiles, or a file.")]
RecipeFile = Annotated[str, typer.Option("--recipe", help="A name of deployments/recipes, or a file.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be given again.")
]

# The part of it that is run.
Until = Annotated[str | None, typer.Option("--until", metavar="STAGE", help="Stop after this stage.")]
From = Annotated[
    str | None, typer.Option("--from", metavar="STAGE", help="Start at this stage, on the newest checkpoints above it.")
]
Only = Annotated[
    str | None, typer.Option("--only", metavar="STAGE", help="This stage alone, on the newest checkpoint above it.")
]
Force = Annotated[
    str | None, typer.Option("--force", metavar="STAGE", help="Make this stage's steps anew although they are intact.")
]
