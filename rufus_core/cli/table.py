"""`rufus table`: what every stage changed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from rufus_core.cli.output import console
from rufus_core.cli.parts import Home, Shared, open_home


class Format(StrEnum):
    TERMINAL = "terminal"
    JSON = "json"
    CSV = "csv"
    MD = "md"


def table(
    home: Home = None,
    shared: Shared = None,
    format_: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TERMINAL,
    json_: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Show each checkpoint of the newest run on every benchmark, and its change from the one before."""
    from rufus_core.evaluation import render
    from rufus_core.evaluation.collect import collect_rows

    place, store = open_home(home, shared)
    rows = collect_rows(store)
    for fault in store.listing().faults:  # or a row would be missing without a word
        typer.echo(f"warning: {fault}", err=True)
    chosen = Format.JSON if json_ else format_
    if chosen is Format.JSON:
        typer.echo(render.json_table(rows))
    elif chosen is Format.CSV:
        typer.echo(render.csv_table(rows), nl=False)
    elif chosen is Format.MD:
        typer.echo(render.markdown_table(rows), nl=False)
    elif rows:
        out = console()
        out.print(render.terminal_table(rows, out.width))
    else:
        typer.echo(f"No checkpoint in {place} yet. `rufus run` makes some.")
