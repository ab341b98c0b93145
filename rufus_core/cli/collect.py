"""`rufus collect`: give back the disk of what no kept checkpoint needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from rufus_core.cli.output import console, print_json
from rufus_core.cli.parts import Home, Shared, open_home
from rufus_core.errors import LineageError
from rufus_core.lineage.collect import Item, collectable
from rufus_core.lineage.collect import collect as collect_items
from rufus_core.lineage.names import artifact_label
from rufus_core.lineage.store import Store


def collect(
    home: Home = None,
    shared: Shared = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE", help="Keep only the newest checkpoint of this stage; may be given again."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove the bytes. Without it they are only listed.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List what no kept checkpoint needs, what would be lost with it, and with --yes remove it. Records stay.

    Kept are the newest artifact of every name and all it was made from; with --keep, less. What a running job reads or
    writes is kept too. An artifact that was removed is made again when a run needs it.
    """
    from rufus_core.recipe.step import VERSIONS

    place, store = open_home(home, shared)
    items = collectable(store, VERSIONS, keep or None, _in_use(store, place))
    freed = collect_items(store, items) if yes else 0
    total = sum(item.num_bytes for item in items)
    if json_:
        print_json({"items": [_plain(item) for item in items], "bytes": total, "freed": freed})
        return
    out = console()
    kept = f" {store.shared.url} keeps all it has." if store.shared else ""
    if items:
        out.print(_table(items))
    if not items:
        typer.echo("There is nothing to collect.")
    elif yes:
        typer.echo(f"Freed {freed / 1e6:,.1f} MB; the records stay.{kept}")
    else:
        typer.echo(f"{total / 1e6:,.1f} MB can go. Nothing was removed: `rufus collect --yes` does it.{kept}")


def _in_use(store: Store, home: Path) -> set[str]:
    """Ids of what the jobs that live now read.

    Raises:
        LineageError: what a living job reads can't be told: its run has another home.
    """
    from rufus_core.jobs.document import JobDocument
    from rufus_core.lineage.attempt import attempts_in

    ids: set[str] = set()
    for attempt in attempts_in(store.root / "attempts"):
        if not attempt.alive():
            continue
        folder = home / "jobs" / artifact_label(attempt.name, attempt.fingerprint)
        try:
            document = JobDocument.load(folder / "document.json")
        except LineageError:
            raise LineageError(
                f"a job writes {attempt.name}, and what it reads is not known here",
                where=str(attempt.home),
                hint="wait until it has ended, or name its run's home with --home",
            ) from None
        ids |= {source.record_id for source in document.inputs.values()}
    return ids


def _plain(item: Item) -> dict[str, object]:
    return {
        "what": item.what,
        "id": item.id,
        "bytes": item.num_bytes,
        "why": item.why,
        "loss": item.loss,
        "files": list(item.files),
    }


def _table(items: list[Item]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("what")
    table.add_column("which", overflow="fold")
    table.add_column("MB", justify="right")
    table.add_column("without it", overflow="fold")
    for item in sorted(items, key=lambda item: -item.num_bytes):
        style = "red" if item.loss.startswith("UNREPRODUCIBLE") else ""
        table.add_row(item.what, Text(item.id), f"{item.num_bytes / 1e6:,.1f}", Text(item.loss, style=style))
    return table
