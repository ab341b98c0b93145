"""What `rufus problems screen` prints: verdicts by source, a histogram of pass rates, and what moved."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rufus_core.cli.changes import printable
from rufus_core.cli.problem_sets import Screen
from rufus_core.cli.problem_tables import ID_DIGITS, percent, plain_table
from rufus_core.evaluation.screening import DECISIONS, Comparison, by_source, compare, count_decisions, histogram
from rufus_core.types import Json

BAR = 40  # columns of the longest bar
MAX_MOVES = 10  # listed; --json has all


def show_screen(screen: Screen, before: Screen | None, out: Console) -> None:
    header = screen.header
    out.print(Text(printable(f"{screen.record.name} {screen.record.digest[:12]}"), style="bold"), soft_wrap=True)
    out.print(Text(printable(f"by {screen.policy}")), soft_wrap=True)
    told = f"kept: {header['window']} at n={header['num_attempts']}, temperature {header['temperature']:g}"
    out.print(f"{told}, seed {header['seed']}")
    out.print()
    out.print(_decisions(screen))
    counts = header["counts"]
    lost = counts["attempts_aborted"] + counts["attempts_unscorable"]
    if lost:
        out.print(f"{lost:,} attempts left before p: {counts['attempts_aborted']:,} aborted, the rest unscorable")
    out.print()
    _print_histogram(screen, out)
    if before is not None:
        out.print()
        _print_moves(before, compare(before.rows, screen.rows), out)


def screen_json(screen: Screen, before: Screen | None) -> dict[str, Json]:
    found: dict[str, Json] = {
        "record": screen.record.id,
        "digest": screen.record.digest,
        **screen.header,
        "histogram": dict(histogram(screen.rows)),
        "against": None,
    }
    if before is not None:
        moves = compare(before.rows, screen.rows)
        found["against"] = {
            "record": before.record.id,
            "digest": before.record.digest,
            "samplers": before.header["samplers"],
            "by_source": moves.by_source(),
            "moves": [move.model_dump(mode="json") | {"kind": move.kind} for move in moves.moves],
            "only_old": list(moves.only_old),
            "only_new": list(moves.only_new),
        }
    return found


def _decisions(screen: Screen) -> Table:
    made = [name for name in DECISIONS if name == "kept" or name in count_decisions(screen.rows)]
    table = plain_table(("source",), ("problems", *(name.replace("_", " ") for name in made), "kept %"))
    groups = by_source(screen.rows)
    rows = dict(groups) if len(groups) == 1 else {**groups, "all": count_decisions(screen.rows)}
    for source, counts in rows.items():
        total = sum(counts.values())
        numbers = (f"{counts.get(name, 0):,}" for name in made)
        table.add_row(Text(printable(source)), f"{total:,}", *numbers, percent(counts.get("kept", 0) / total))
    return table


def _print_histogram(screen: Screen, out: Console) -> None:
    """A line for each pass rate: how many problems have it."""
    bins = histogram(screen.rows)
    most = max((count for _, count in bins), default=0)
    if most:
        out.print(Text("passed  problems", style="bold"))
    for name, count in bins:
        out.print(Text(f"{name:>6}  {count:>8,}  {'█' * round(BAR * count / max(most, 1))}".rstrip()))


def _print_moves(before: Screen, moves: Comparison, out: Console) -> None:
    named = f"against {before.record.name} {before.record.digest[:12]}"
    out.print(Text(printable(named), style="bold"), soft_wrap=True)
    out.print(Text(printable(f"by {before.policy}")), soft_wrap=True)
    table = plain_table(("source",), ("kept still", "kept -> out", "out -> kept", "out still", "p before", "p now"))
    for source, each in moves.by_source().items():
        numbers = (f"{each[kind]:,.0f}" for kind in ("stayed", "left", "joined", "out"))
        rates = (f"{each[name]:.3f}" if name in each else "-" for name in ("old_rate", "new_rate"))
        table.add_row(Text(printable(source)), *numbers, *rates)
    out.print(table)
    for ids, which in ((moves.only_old, "that"), (moves.only_new, "this")):
        if ids:
            out.print(f"{len(ids):,} problems only {which} screen has seen")
    moved = [move for move in moves.moves if move.kind in ("left", "joined")]
    if not moved:
        return
    rows = plain_table(("problem", "source"), ("p before", "p now"))
    rows.add_column("verdict")
    for move in moved[:MAX_MOVES]:
        rates = ("-" if rate is None else f"{rate:.2f}" for rate in (move.old_rate, move.new_rate))
        told = f"{move.old} -> {move.new}".replace("_", " ")
        rows.add_row(move.id[:ID_DIGITS], Text(printable(move.source)), *rates, told)
    out.print()
    out.print(rows)
    if len(moved) > MAX_MOVES:
        out.print(f"and {len(moved) - MAX_MOVES:,} more that moved (--json has all)")
