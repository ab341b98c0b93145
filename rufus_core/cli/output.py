"""Printing, shared by the commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence

import typer
from rich.console import Console
from rich.table import Table

from rufus_core.lineage.newest import clock_warning
from rufus_core.lineage.resolve import Ref
from rufus_core.lineage.store import Store
from rufus_core.recipe.step import Step
from rufus_core.types import Json

NUM_COLUMNS = 100  # where the output is no terminal


def console() -> Console:
    """A console on stdout. Colour goes to terminals only, and not where NO_COLOR is set (rich's own rule)."""
    fixed = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=NUM_COLUMNS if fixed else None)


def titled_table(title: str, columns: Iterable[str], right: Iterable[str] = ()) -> Table:
    """A table without lines; the columns in `right` are aligned so."""
    table = Table(box=None, padding=(0, 1, 0, 0), title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def print_json(value: Json) -> None:
    """One JSON document on stdout and nothing else.

    Raises:
        ValueError: the value holds NaN or an infinity.
    """
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def chosen(store: Store, text: str) -> Ref:
    """The artifact that a user names; on stderr what they must know of that choice. Raises LineageError."""
    ref = store.resolve(text)
    for warning in ref.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return ref


def warn_of_clocks(graph: Sequence[Step]) -> None:
    """Tell of checkpoints that a part is begun with and that are the newest only by a clock that was wrong."""
    for step in graph:
        warning = clock_warning(step.artifact) if step.artifact else None
        if warning:
            typer.echo(f"warning: {warning}", err=True)
