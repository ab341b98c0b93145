"""`rufus adopt`: take a checkpoint that was made elsewhere into the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rufus_core.cli.output import chosen, print_json
from rufus_core.cli.parts import Home, Shared, open_home


def adopt(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A Hugging Face directory with safetensors weights.")],
    stage: Annotated[str, typer.Option("--as", metavar="NAME", help="The stage whose checkpoint it shall be.")],
    home: Home = None,
    shared: Shared = None,
    parent: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="What it was made from, if the store has that.")
    ] = None,
    note: Annotated[str, typer.Option(help="A word for the record: how it was made, say.")] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Copy a policy that was made elsewhere into the store, as a stage's newest checkpoint.

    `rufus trace`, `rufus eval` and `--set base.path=` take it; a run never takes it for what the stage itself makes.
    """
    from rufus_core.errors import ConfigError, RufusError
    from rufus_core.lineage.adopt import adopt as adopt_files
    from rufus_core.lineage.digest import COLLECTED_FILE
    from rufus_core.recipe.base_files import base_files

    source = Path(path).expanduser().absolute()
    _, store = open_home(home, shared)
    made_from = chosen(store, parent).record if parent else None
    try:
        files = base_files(path)
    except ConfigError as error:
        error.where = path
        raise
    files.pop(COLLECTED_FILE, None)

    def check(folder: Path) -> None:
        from rufus_core.rollout.policy import load_policy

        try:
            load_policy(folder)
        except RufusError as error:
            error.where = path  # the user's, and not our copy
            raise

    record = adopt_files(store, stage, source, files, check, made_from, note)
    if json_:
        print_json({"id": record.id, "digest": record.digest, "path": str(store.path(record))})
        return
    typer.echo(f"{record.id}  digest {record.digest[:12]}")
    typer.echo(
        f"next:  rufus trace {stage}\n       rufus eval {stage}\n       rufus run --set base.path={store.path(record)}"
    )
