"""`rufus deploy`: put the deployments of prefect.yaml on a Prefect server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def deploy(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Deployments of the file; by default all.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the files and deploy nothing. Needs no server.")
    ] = False,
    file: Annotated[
        Path, typer.Option(help="The deployments; `deployments/` beside it has automations and limits.")
    ] = (Path("prefect.yaml")),
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check prefect.yaml, deploy it to PREFECT_API_URL, remove what it no longer has, and read it back."""
    from rich.table import Table

    from rufus_core.cli.orchestration import load_orchestrator
    from rufus_core.cli.output import console, print_json

    done = load_orchestrator().deploy(file, names or (), check)
    if json_:
        print_json([asdict(each) for each in done])
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("kind", "name", ""):
        table.add_column(column)
    for each in done:
        table.add_row(each.kind, each.name, each.action)
    console().print(table)
