"""The table of what a run would do with each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rufus_core.cli.changes import change_text
from rufus_core.cli.progress import duration
from rufus_core.recipe.status import GraphStatus, StepStatus

MAX_CHANGES = 4  # of a step; --json has all
STYLES = {"reuse": "dim", "stale": "yellow", "run": ""}


def print_steps(status: GraphStatus, out: Console, every: bool) -> None:
    """The steps that a run would make, or every step, and what that costs."""
    shown = [step for step in status.steps if every or step.action != "reuse"]
    if not every and all(step.record is None for step in status.steps):
        shown = []  # nothing was ever made: the line below says it
    if shown:
        out.print(Text("Steps: what `rufus run` would do, and how long that took the last time", style="italic"))
        out.print(_table(shown))
        out.print()
    for line in _summary(status):
        out.print(Text(line))


def _table(steps: list[StepStatus]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for column in ("step", "", "time", "measured"):
        table.add_column(column, no_wrap=True, justify="right" if column == "time" else "left")
    table.add_column("why", overflow="fold")
    for step in steps:
        seconds = "?" if step.seconds is None else duration(step.seconds)
        date = "" if step.measured is None else f"{step.measured:%Y-%m-%d}"
        row = (step.name, step.action, seconds, date, "\n".join(_why(step)))
        table.add_row(*(Text(text, style=STYLES[step.action]) for text in row))
    return table


def _why(step: StepStatus) -> Iterator[str]:
    yield from filter(None, [step.why])
    if step.unless:
        yield f"if {' or '.join(step.unless)} changes"
    for change in step.changes[:MAX_CHANGES]:
        yield change_text(change)
    if len(step.changes) > MAX_CHANGES:
        yield f"and {len(step.changes) - MAX_CHANGES} more (--json shows all)"


def _summary(status: GraphStatus) -> Iterator[str]:
    counts = Counter(step.action for step in status.steps)
    certain = sum(step.action != "reuse" and not step.unless for step in status.steps)
    perhaps = sum(bool(step.unless) for step in status.steps)
    if counts["reuse"] == len(status.steps):
        yield f"`rufus run` would make nothing: all {len(status.steps)} steps are intact in the store."
        return
    told = [f"{counts['reuse']} reused", f"{certain} made", *([f"{perhaps} made perhaps"] if perhaps else [])]
    yield f"`rufus run`: of {len(status.steps)} steps {', '.join(told)}."
    if status.seconds_at_most:
        most = f", at most {duration(status.seconds_at_most)}" if perhaps else ""
        unknown = f"; without {status.num_unknown} that were never measured" if status.num_unknown else ""
        yield f"By the times of before, one after another: {duration(status.seconds)}{most}{unknown}."
