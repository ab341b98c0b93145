"""`rufus diff`: in what two artifacts differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rufus_core.cli.changes import SHORT, change_text, printable, value_text
from rufus_core.cli.output import console, print_json
from rufus_core.cli.parts import Home, Shared, open_home
from rufus_core.lineage.diff import ArtifactDiff, Diff
from rufus_core.lineage.diff import diff as diff_artifacts
from rufus_core.lineage.rows import RowChanges

if TYPE_CHECKING:
    from rufus_core.evaluation.differences import ScoreChange

MAX_CHANGES = 20  # of one pair; --json has all


def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="A stage, coding_rl@12, a digest, an artifact's name or id.")],
    new: Annotated[str, typer.Argument(metavar="B", help="What it is compared with.")],
    home: Home = None,
    shared: Shared = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show in what two checkpoints, data sets or other artifacts differ: settings, inputs, code, rows, scores.

    What they were made from is compared too, as far as it differs. A difference is no failure: the exit code is 0.
    """
    from rufus_core.evaluation.differences import score_changes

    _, store = open_home(home, shared)
    before, after = store.resolve(old), store.resolve(new)
    for warning in dict.fromkeys((*before.warnings, *after.warnings)):
        typer.echo(f"warning: {warning}", err=True)
    result, scores = diff_artifacts(store, before, after), score_changes(store, before, after)
    for fault in result.faults:
        typer.echo(f"warning: {fault}", err=True)
    if json_:
        print_json({**result.model_dump(mode="json"), "scores": [each.model_dump(mode="json") for each in scores]})
        return
    _print(result, scores, console())


def _print(result: Diff, scores: Sequence[ScoreChange], out: Console) -> None:
    first = result.pairs[0]
    for side, name, digest in (("A", first.old, first.old_digest), ("B", first.new, first.new_digest)):
        out.print(Text(f"{side}  {name}  digest {digest[:SHORT]}"), soft_wrap=True)
    out.print(Text("The same bytes." if first.old_digest == first.new_digest else "Other bytes."))
    for pair in result.pairs:
        _print_pair(pair, first, out)
    if scores:
        out.print()
        out.print(_scores_table(scores))


def _print_pair(pair: ArtifactDiff, first: ArtifactDiff, out: Console) -> None:
    lines = [change_text(change) for change in pair.fields[:MAX_CHANGES]]
    if len(pair.fields) > MAX_CHANGES:
        lines.append(f"and {len(pair.fields) - MAX_CHANGES} more (--json shows all)")
    if pair is first or pair.code != first.code:  # one line tells what all have in common
        lines += [f"code {change_text(change)}" for change in pair.code]
    out.print()
    out.print(Text(_heading(pair), style="bold"), soft_wrap=True)
    for line in lines or ["made alike"]:
        out.print(Padding(Text(line), (0, 0, 0, 2)))
    if pair.rows is not None:
        out.print(_rows_table(pair.rows))
        for line in _examples(pair.rows):
            out.print(Text(f"  {line}"), no_wrap=True, overflow="ellipsis")


def _heading(pair: ArtifactDiff) -> str:
    if not pair.role:
        return "themselves"
    names = pair.old if pair.old == pair.new else f"{pair.old} -> {pair.new}"
    return f"{pair.role}: {names}"


def _rows_table(rows: RowChanges) -> Table:
    table = _table(("  rows of", "source", "A", "B", "added", "removed", "changed"), right=5)
    for file in rows.files:
        counts = (file.num_old, file.num_new, file.added, file.removed, file.changed)
        table.add_row(Text(f"  {printable(file.file)}"), "", *(f"{count:,}" for count in counts))
        for source, changes in file.by_source.items():
            table.add_row("", Text(printable(source)), "", "", *(f"{count:,}" for count in changes))
    return table


def _examples(rows: RowChanges) -> Iterator[str]:
    for word, examples in (("added", rows.added), ("removed", rows.removed), ("changed", rows.changed)):
        for row in examples:
            yield f"{word} {printable(row.id)} ({printable(row.source)}): {value_text(row.text)}"


def _scores_table(scores: Sequence[ScoreChange]) -> Table:
    table = _table(("scores, in percent", "A", "B", "change", "95% interval", "problems"), right=5)
    table.add_column("", overflow="fold")
    for each in scores:
        interval = "-" if each.ci95 is None else f"{100 * each.ci95[0]:+.1f} to {100 * each.ci95[1]:+.1f}"
        change = "-" if each.delta is None else f"{100 * each.delta:+.1f}"
        problems = str(each.n) if each.delta is not None else "-"
        why = f"not comparable: {each.why}" if each.why else ""
        table.add_row(each.benchmark, _percent(each.old), _percent(each.new), change, interval, problems, Text(why))
    return table


def _table(columns: Sequence[str], right: int) -> Table:
    """The last `right` columns hold numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index >= len(columns) - right else "left", no_wrap=True)
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
