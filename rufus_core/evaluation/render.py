"""The stage table as text: for a terminal, and as Markdown, CSV and JSON. Shares are shown in percent."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rufus_core.evaluation.table import Cell, StageRow, benchmark_names

MAX_HEADER = 10  # characters of a benchmark's name in a terminal
MIN_HEADER = 6
LEGEND = "Percent, pass@1; then the change from the row above. * = its 95% interval excludes 0."
OTHER_PROTOCOL = "~ = the row above was measured under another protocol: no change is shown."
LOST_SAMPLES = "! = samples lost to the infrastructure were left out."


def terminal_table(rows: Sequence[StageRow], width: int) -> Group:
    """Tables of at most `width` columns, one beneath the other where one would be wider: no number is ever cut.

    A cell's change moves under its mean where one line would be too wide.
    """
    names = benchmark_names(rows)
    identities = [(row.stage, "" if row.step is None else str(row.step)) for row in rows]
    cells = [[_parts(row.metrics.get(name)) for name in names] for row in rows]
    room = width - sum(map(_column_width, zip(("stage", "step"), *identities, strict=True)))
    headers = abbreviate(names, max(MIN_HEADER, min(MAX_HEADER, room // max(1, len(names)) - 1)))

    columns = list(zip(headers, *([" ".join(parts) for parts in row] for row in cells), strict=True))
    if sum(map(_column_width, columns)) > room:
        columns = list(zip(headers, *(["\n".join(parts) for parts in row] for row in cells), strict=True))
    tables: list[Table | Text] = [_table(identities, block) for block in _blocks(columns, room)]
    spaced = [part for table in tables for part in (Text(""), table)][1:]
    return Group(*spaced, *(Text(note, style="dim") for note in _notes(rows, dict(zip(headers, names, strict=True)))))


def _blocks(columns: Sequence[tuple[str, ...]], room: int) -> list[list[tuple[str, ...]]]:
    """The columns in order, as many side by side as there is room for; at least one block, and one column in each."""
    blocks: list[list[tuple[str, ...]]] = [[]]
    for column in columns:
        if blocks[-1] and sum(map(_column_width, [*blocks[-1], column])) > room:
            blocks.append([])
        blocks[-1].append(column)
    return blocks


def _table(identities: Sequence[tuple[str, str]], columns: Sequence[tuple[str, ...]]) -> Table:
    """Columns begin with their header. In a very narrow terminal a stage's name is folded."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("stage", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    for header, *_ in columns:
        table.add_column(header, no_wrap=True)
    for index, identity in enumerate(identities, start=1):
        table.add_row(*identity, *(column[index] for column in columns))
    return table


def markdown_table(rows: Sequence[StageRow]) -> str:
    names = benchmark_names(rows)
    lines = [
        _markdown_line(["stage", "step", "checkpoint", *names]),
        _markdown_line(["---", "---:", "---", *("---:" for _ in names)]),
    ]
    for row in rows:
        step = "" if row.step is None else str(row.step)
        cells = [_with_error(row.metrics.get(name)) for name in names]
        lines.append(_markdown_line([row.stage, step, f"{row.checkpoint} `{row.digest[:12]}`", *cells]))
    legend = "Percent, pass@1 ± standard error clustered by problem; in brackets the change from the row above."
    notes = [legend, "\\* = its 95% interval (paired bootstrap over problems) excludes 0.", *_marks_used(rows)]
    return "\n".join([*lines, "", *notes]) + "\n"


def csv_table(rows: Sequence[StageRow]) -> str:
    """One line for each number, in full precision and as shares; blank where not measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    identity = ["stage", "checkpoint", "digest", "step"]
    plain = ["mean", "stderr", "n", "num_lost_samples", "parent_mean", "parent_stderr", "delta"]
    writer.writerow([*identity, "benchmark", *plain, "ci95_low", "ci95_high", "other_protocol"])
    for row in rows:
        for name, cell in row.metrics.items():
            low, high = cell.ci95 or (None, None)
            values = [getattr(cell, field) for field in plain]
            who = [getattr(row, field) for field in identity]
            writer.writerow([*who, name, *values, low, high, str(cell.other_protocol).lower()])
    return out.getvalue()


def json_table(rows: Sequence[StageRow]) -> str:
    return json.dumps([row.model_dump(mode="json") for row in rows], indent=2, allow_nan=False)


def abbreviate(names: Sequence[str], width: int) -> list[str]:
    """Each name in at most `width` characters, all different: words lose their ends, the longest first.

    `terminal_bench_2_1` becomes `te_ben_2_1` in ten. A last word that all names share goes first.
    """
    stems = [name.rpartition("_") for name in names]
    if len(names) > 1 and len({last for _, _, last in stems}) == 1 and all(first for first, _, _ in stems):
        bases = [first for first, _, _ in stems]
    else:
        bases = list(names)
    short: list[str] = []
    for base in bases:
        candidate, number = _abbreviated(base, width), 2
        while candidate in short:
            candidate, number = f"{_abbreviated(base, width - len(str(number)))}{number}", number + 1
        short.append(candidate)
    return short


def _abbreviated(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    words = re.findall(r"[^\W\d_]+|\d+", name)
    while len("_".join(words)) > width and max(map(len, words)) > 1:
        longest = max(range(len(words)), key=lambda index: len(words[index]))
        words[longest] = words[longest][:-1]
    return "_".join(words)[:width]


def _column_width(texts: Sequence[str]) -> int:
    return max(len(line) for text in texts for line in text.split("\n")) + 1


def _parts(cell: Cell | None) -> list[str]:
    """["41.2", "+5.1*"], or less where it was not measured."""
    if cell is None:
        return [""]
    if cell.mean is None:
        return ["!"]
    mark = ("!" if cell.num_lost_samples else "") + ("~" if cell.other_protocol else "")
    change = [] if cell.delta is None else [f"{100 * cell.delta:+.1f}{'*' if cell.significant else ''}"]
    return [f"{100 * cell.mean:4.1f}{mark}", *change]


def _with_error(cell: Cell | None) -> str:
    parts = [part.strip() for part in _parts(cell)]
    if cell is not None and cell.stderr is not None:
        parts[0] += f" ± {100 * cell.stderr:.1f}"
    return parts[0] + (f" ({parts[1]})".replace("*", "\\*") if len(parts) > 1 else "")


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _marks_used(rows: Sequence[StageRow]) -> list[str]:
    cells = [cell for row in rows for cell in row.metrics.values()]
    notes = []
    if any(cell.other_protocol for cell in cells):
        notes.append(OTHER_PROTOCOL)
    if any(cell.num_lost_samples for cell in cells):
        notes.append(LOST_SAMPLES)
    return notes


def _notes(rows: Sequence[StageRow], names_by_header: dict[str, str]) -> list[str]:
    shortened = [f"{header}={name}" for header, name in names_by_header.items() if header != name]
    return ["", LEGEND, *_marks_used(rows), *([" ".join(shortened)] if shortened else [])]
