"""`rufus reproduce`: make a checkpoint anew from its records, and compare the bytes."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rufus_core.cli.output import chosen, console, print_json
from rufus_core.cli.parts import Home, Shared, open_home
from rufus_core.cli.progress import duration
from rufus_core.errors import ConfigError
from rufus_core.jobs.reproduce import Rebuilt, Reproduction, ancestry, drift
from rufus_core.jobs.reproduce import reproduce as rebuild
from rufus_core.lineage.record import Record

WORDS = {"identical": "bit-identical", "different": "DIFFERENT", "failed": "FAILED", "taken": "taken as it is"}


def reproduce(
    checkpoint: Annotated[str, typer.Argument(help="A stage, a digest, or any artifact's name.")],
    home: Home = None,
    shared: Shared = None,
    only: Annotated[bool, typer.Option("--only", help="Make this one step, from its inputs in the store.")] = False,
    until_differs: Annotated[
        bool, typer.Option("--until-differs", help="Stop at the first artifact that differs.")
    ] = False,
    scratch: Annotated[
        Path | None, typer.Option(help="An empty folder to make it in, which stays; by default a temporary one.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Make a checkpoint and all it was made from anew, from the records alone, and compare every byte.

    Nothing in the store changes. Exits with 1 if something differs.
    """
    from rufus_core.lineage.provenance import collect_provenance
    from rufus_core.recipe.step import VERSIONS

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _, store = open_home(home, shared)
    root = chosen(store, checkpoint).record
    changed = drift([root] if only else ancestry(store, root), collect_provenance(), VERSIONS)
    out = Console(stderr=True, highlight=False) if json_ else console()
    for line in changed:
        out.print(f"warning: {line}", markup=False, soft_wrap=True)
    with _folder(scratch) as folder, _Display(out) as display:
        steps = tuple(rebuild(store, root, folder, display, only, until_differs))
    result = Reproduction(root=root.id, drift=changed, steps=steps)
    if json_:
        print_json({**result.model_dump(mode="json"), "identical": result.identical})
    else:
        out.print(_verdict(result), markup=False, soft_wrap=True)
    if not result.identical:
        raise typer.Exit(1)


@contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="rufus-reproduce-") as folder:
            yield Path(folder)
        return
    if chosen.exists() and (not chosen.is_dir() or any(chosen.iterdir())):
        raise ConfigError("this is no empty folder", where=str(chosen), hint="name a new one with --scratch")
    chosen.mkdir(parents=True, exist_ok=True)
    yield chosen.absolute()


def _verdict(result: Reproduction) -> str:
    if result.identical:
        made = sum(step.result == "identical" for step in result.steps)
        return f"{result.root}: bit-identical ({made} artifacts made anew)"
    first = next(step for step in result.steps if step.result in ("different", "failed"))
    if first.result == "failed":
        return f"{first.record_id}: can't be made anew: {first.error}"
    file = first.changes[0]
    return f"{first.record_id}: differs first, in {file.path} ({file.change})"


class _Display:
    """A bar for the step being made, on a terminal; a line for each that ended."""

    def __init__(self, out: Console) -> None:
        self._out = out
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
        self._progress = Progress(
            *columns, TimeRemainingColumn(compact=True), console=out, transient=True, disable=not out.is_terminal
        )
        self._bar = self._progress.add_task("")
        self._place = ""

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def started(self, record: Record, number: int, total: int) -> None:
        self._place = f"{number:>{len(str(total))}}/{total}"
        self._progress.reset(self._bar, description=f"{self._place}  {record.name}", total=None)

    def progressed(self, done: int, total: int) -> None:
        self._progress.update(self._bar, completed=done, total=total or None)

    def finished(self, step: Rebuilt) -> None:
        line = f"{self._place}  {step.record_id:<48}  {WORDS[step.result]:<14}  {duration(step.seconds):>7}"
        self._progress.console.print(line, markup=False, soft_wrap=True)
