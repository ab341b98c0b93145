"""Options that several commands have, and the store that two of them name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rufus_core.lineage.cache import HashCache
from rufus_core.lineage.home import SHARED_ROOT, open_store, rufus_home
from rufus_core.lineage.sharing import mirror
from rufus_core.lineage.store import Store

Home = Annotated[Path | None, typer.Option(help="Home of the runs; by default RUFUS_HOME, else .rufus.")]
Shared = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="What this home shares with others: s3://bucket/prefix, file:///mnt/rufus; by default RUFUS_STORE.",
    ),
]

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


def open_home(home: Path | None, shared: str | None, cached: bool = False) -> tuple[Path, Store]:
    """The home and its store, which knows every record of the shared root, if there is one.

    The root holds for this whole process, and so for the jobs that it starts.

    Args:
        cached: trust hashes that were taken before.
    """
    place = rufus_home(home)
    if shared is not None:
        os.environ[SHARED_ROOT] = shared
    store = open_store(place, HashCache(place / "hashes.json") if cached else None)
    for fault in mirror(store):
        typer.echo(f"warning: {fault}", err=True)
    return place, store
