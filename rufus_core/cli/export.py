"""`rufus export`: all that is needed to make a checkpoint anew, as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rufus_core.cli.output import chosen, print_json
from rufus_core.cli.parts import Home, Shared, open_home


def export(
    checkpoint: Annotated[str, typer.Argument(help="A stage, a digest, or any artifact's name.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="A new or empty folder.")],
    home: Home = None,
    shared: Shared = None,
    weights: Annotated[bool, typer.Option("--weights", help="Copy the checkpoint's files too.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Write a bundle: configuration, lock file, commit and uncommitted changes, data by hash, records, and commands.

    The same checkpoint gives the same bytes.
    """
    from rufus_core.jobs.reproduce import ancestry
    from rufus_core.lineage.export import export as write_bundle

    _, store = open_home(home, shared)
    root = chosen(store, checkpoint).record
    chain = ancestry(store, root)
    folder = to.expanduser().absolute()
    write_bundle(store, chain, folder, weights)
    if json_:
        print_json({"id": root.id, "digest": root.digest, "records": len(chain), "folder": str(folder)})
        return
    typer.echo(f"{root.id} with {len(chain)} records: {folder}")
    typer.echo(f"next:  rufus verify --bundle {to}\n       rufus reproduce {root.id} --home {to}")
