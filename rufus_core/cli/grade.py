"""`rufus grade`: verdicts on responses that were made elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rufus_core.cli.changes import printable
from rufus_core.cli.output import console, print_json
from rufus_core.cli.parts import Overrides, Profile, RecipeFile
from rufus_core.types import Json, Verdict, VerdictKind

if TYPE_CHECKING:
    from rufus_core.data.answers import Answer

UNGRADED = (VerdictKind.UNSCORABLE, VerdictKind.ABORTED)
SHOWN = 20  # lines about single rows


def grade(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="Problems and responses; see docs/verifiers.md.")],
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the verdicts here as JSON Lines.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="How many are graded side by side.")] = 2,
    profile: Profile = "cpu",
    recipe: RecipeFile = "rufus_air",
    set_: Overrides = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Grade responses with the verifiers, judges and limits that the recipe trains with.

    Where rows say what is `expected`, each difference is shown, and the command exits with 1 if there is one. Rows that
    got no grade are shown with the reason.
    """
    from rufus_core.data.answers import read_answers
    from rufus_core.recipe.load import load_recipe

    settings = load_recipe(recipe, profile, set_ or ())
    answers = list(read_answers(file))
    from rufus_core.stages.grade import grade as graded  # brings torch: not before the file is known to be sound

    bars = (TextColumn("grading"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    err = Console(stderr=True)
    with Progress(*bars, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("", total=len(answers))
        verdicts = graded(
            answers,
            settings.stages,
            execution=settings.execution.model_copy(update={"rollout_workers": workers}),
            on_graded=lambda count: progress.update(bar, completed=count),
        )
    rows = [_row(answer, verdict) for answer, verdict in zip(answers, verdicts, strict=True)]
    if output is not None:
        output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    differing = [row for row in rows if row["expected"] not in (None, row["verdict"])]
    if json_:
        print_json(rows)
    else:
        ungraded = [row for row in rows if row["verdict"] in UNGRADED and row["expected"] is None]
        _print(answers, verdicts, differing, ungraded, console())
    if differing:
        raise typer.Exit(1)


def _row(answer: Answer, verdict: Verdict) -> dict[str, Json]:
    told = asdict(verdict)
    return {
        "where": answer.where,
        "id": answer.problem.id,
        "family": answer.problem.family,
        "verdict": told.pop("kind").value,
        "expected": answer.expected and answer.expected.value,
        **told,
    }


def _print(
    answers: Sequence[Answer],
    verdicts: Sequence[Verdict],
    differing: Sequence[Mapping[str, Json]],
    ungraded: Sequence[Mapping[str, Json]],
    out: Console,
) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("family")
    for name in (*VerdictKind, "mean score", "ms each"):
        table.add_column(name, justify="right")
    families = [answer.problem.family for answer in answers]
    for family in sorted(set(families)):
        own = [verdict for verdict, name in zip(verdicts, families, strict=True) if name == family]
        kinds = Counter(verdict.kind for verdict in own)
        scores = [verdict.score for verdict in own if verdict.counts]
        mean = f"{sum(scores) / len(scores):.3f}" if scores else "-"
        ms = 1000 * sum(verdict.seconds for verdict in own) / len(own)
        table.add_row(Text(family), *(f"{kinds[kind]:,}" for kind in VerdictKind), mean, f"{ms:.1f}")
    out.print(table)
    num_expected = sum(answer.expected is not None for answer in answers)
    if num_expected:
        out.print(f"{num_expected - len(differing):,} of {num_expected:,} as expected")
    for rows in (differing, ungraded):
        for row in rows[:SHOWN]:
            expected = f", expected {row['expected']}" if row["expected"] else ""
            reason = f": {row['reason']}" if row["reason"] else ""
            out.print(Text(printable(f"{row['where']}: {row['verdict']}{expected}{reason}")), soft_wrap=True)
        if len(rows) > SHOWN:
            out.print(f"and {len(rows) - SHOWN:,} more (--output writes them all)")
