"""The options that name a part of a recipe, of `rufus run` and `rufus plan`."""

from __future__ import annotations

from typing import Annotated

import typer

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
