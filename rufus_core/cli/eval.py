"""`rufus eval`: measure any checkpoint on the recipe's benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rufus_core.cli.parts import Home, Overrides, Profile, RecipeFile, Shared, open_home

if TYPE_CHECKING:
    from rich.table import Table

    from rufus_core.evaluation.scores import Scores
    from rufus_core.types import Json

COLUMNS = ("benchmark", "pass@1", "stderr", "pass@k", "k", "problems", "samples", "lost")


def eval_(
    checkpoint: Annotated[
        str, typer.Argument(help="A stage, `base`, a stage and step (coding_rl@12), or digits of a digest.")
    ],
    benchmark: Annotated[
        list[str] | None,
        typer.Option(help="One of the recipe's; may be given again. By default its stage's targets and guardrails."),
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, metavar="N", help="Samples of each problem.")] = None,
    problems: Annotated[int | None, typer.Option(min=1, metavar="N", help="Problems of a benchmark, at most.")] = None,
    profile: Profile = "cpu",
    recipe: RecipeFile = "rufus_air",
    set_: Overrides = None,
    home: Home = None,
    shared: Shared = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON; progress goes to stderr.")] = False,
) -> None:
    """Measure a checkpoint on held-out problems. What was measured before is reused."""
    from rich.console import Console

    from rufus_core.cli.orchestration import carry_out
    from rufus_core.cli.output import chosen, console, print_json
    from rufus_core.evaluation.scores import Scores
    from rufus_core.recipe.evals import eval_graph, resized
    from rufus_core.recipe.load import load_recipe

    place, store = open_home(home, shared)
    settings = resized(load_recipe(recipe, profile, set_ or []), samples, problems)
    ref = chosen(store, checkpoint)
    graph = eval_graph(settings, ref, checkpoint, benchmark or ())
    out = Console(stderr=True, highlight=False) if json_ else console()
    outcome = carry_out(settings, graph, place, out)

    measured = []
    for step in graph:
        if step.kind == "scores":
            record = store.get(outcome.steps[step.name].record_id or "")
            assert record is not None
            measured += [Scores.load(store.path(record) / file) for file in record.files]
    if json_:
        print_json([_row(scores) for scores in measured])
    else:
        out.print()
        out.print(_table(measured))


def _row(scores: Scores) -> dict[str, Json]:
    """A measurement in numbers; shares in [0, 1]. `k` is the number of samples of each problem."""
    from rufus_core.evaluation.statistics import pass_at_1, pass_at_k

    k = max(map(len, scores.per_problem.values()), default=1)
    mean, at_k = pass_at_1(scores.per_problem), pass_at_k(scores.per_problem, k)
    return {
        "benchmark": scores.benchmark,
        "stage": scores.stage,
        "step": scores.step,
        "checkpoint": scores.checkpoint,
        "digest": scores.digest,
        "pass_at_1": mean.mean,
        "stderr": mean.stderr,
        "pass_at_k": at_k.mean,
        "k": k,
        "num_problems": len(scores.per_problem),
        "num_samples": sum(map(len, scores.per_problem.values())),
        "num_lost_samples": mean.num_lost_samples,
    }


def _table(measured: Sequence[Scores]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "benchmark" else "right")
    for scores in measured:
        row = _row(scores)
        shares = (_percent(row[name]) for name in ("pass_at_1", "stderr", "pass_at_k"))
        counts = (str(row[name]) for name in ("k", "num_problems", "num_samples", "num_lost_samples"))
        table.add_row(escape(scores.benchmark), *shares, *counts)
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
