"""`rufus impact`: what a data source went into."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rufus_core.cli.changes import SHORT, printable
from rufus_core.cli.output import console, print_json
from rufus_core.cli.parts import Home, Shared, open_home
from rufus_core.lineage.impact import Impact
from rufus_core.lineage.impact import impact as impact_of


def impact(
    source: Annotated[
        str,
        typer.Argument(help="A generator, a data file (path or SHA-256), a stage, or an artifact (name, id, digest)."),
    ],
    home: Home = None,
    shared: Shared = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show every checkpoint, score and other artifact that a source went into, at any remove, and the aliases of these.

    A name stands for all that the store has of that name; an id or a digest for one artifact.
    """
    result = impact_of(open_home(home, shared)[1], source)
    for fault in result.faults:
        typer.echo(f"warning: {printable(fault)}", err=True)
    if json_:
        print_json(result.model_dump(mode="json"))
    else:
        _print(result, console())


def _print(result: Impact, out: Console) -> None:
    lead = f"{result.is_a} {printable(result.source)}"
    if result.touched:
        out.print(Text(f"{lead} went into {len(result.touched)} artifacts: {_counted(result)}"))
    else:
        out.print(Text(f"{lead}: nothing was made from it"))
    if not (result.touched or result.aliases):
        return
    names = {each.id: each.name for each in result.touched}
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for column in ("artifact", "step", "digest", "published"):
        table.add_column(column, no_wrap=True, justify="right" if column == "step" else "left")
    table.add_column("through", overflow="fold")
    for each in result.touched:
        through = "\n".join(dict.fromkeys(names[key] for key in each.via if key in names))
        step = "" if each.step is None else str(each.step)
        row = (each.name, step, each.digest[:SHORT], _date(each.published), through or "directly")
        table.add_row(*map(Text, row))
    for alias in result.aliases:
        means = alias.record_id.rpartition("/")[0]
        row = (f"{alias.registered}@{alias.alias}", "", alias.digest[:SHORT], _date(alias.when), means)
        table.add_row(*map(Text, row))
    out.print(table)


def _date(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M}"


def _counted(result: Impact) -> str:
    kinds = Counter(each.kind for each in result.touched)
    counted = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    return f"{counted}; aliases {len(result.aliases)}" if result.aliases else counted
