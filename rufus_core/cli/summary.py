"""What a finished run leaves to look at: the stage table, two figures, and the commands to go on with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from rufus_core.evaluation.figures import learning_curves, stage_scores
from rufus_core.evaluation.render import terminal_table
from rufus_core.evaluation.scores import Scores
from rufus_core.evaluation.table import Checkpoint, StageRow, stage_table
from rufus_core.lineage.home import rufus_home
from rufus_core.lineage.record import CHECKPOINT_KINDS, Record
from rufus_core.lineage.store import Store
from rufus_core.ports.orchestration import RunOutcome
from rufus_core.recipe.step import Step
from rufus_core.settings import Recipe
from rufus_core.training.monitor import remarks


def show_summary(
    recipe: Recipe, graph: Sequence[Step], outcome: RunOutcome, home: Path, store: Store, console: Console
) -> None:
    records = _records(graph, outcome, store)
    rows = _rows(records, store)
    console.print()
    console.print(terminal_table(rows, console.width))
    console.print()
    for remark in stage_remarks(recipe, records):
        console.print(f"warning: {remark}", soft_wrap=True, markup=False)
    for file in _draw(recipe, records, rows, home / "figures", store):
        console.print(f"figure: {file}", soft_wrap=True)
    for line in next_commands(rows[-1].stage, home, store.shared.url if store.shared else None):
        console.print(line, soft_wrap=True, markup=False)


def stage_remarks(recipe: Recipe, records: Sequence[Record]) -> Iterator[str]:
    """What a user should know of each training, also of those that were reused."""
    for record in records:
        if record.kind == "training" and record.stage in recipe.stages:
            for remark in remarks(record.metrics, record.step or 0):
                yield f"{recipe.stages[record.stage].title}: {remark}"


def next_commands(last: str, home: Path, shared: str | None = None) -> list[str]:
    """Lines with the commands to go on with, for the home that they would not find and the shared store at this URL."""
    there = "" if home == rufus_home() else f" --home {shlex.quote(str(home))}"
    both = there if shared is None else f"{there} --store {shlex.quote(shared)}"
    commands = {
        f"rufus trace {last}{both}": "where this checkpoint comes from",
        f"rufus chat {last}{both}": "talk to it",
        f"rufus table{both}": "the table again, also as Markdown, CSV or JSON",
        f"rufus ui{there}": "flows and curves in the browser",
    }
    width = max(map(len, commands))
    lines = [f"{command:<{width}}  {what}" for command, what in commands.items()]
    return [f"{'' if i else 'next:':<8}{line}" for i, line in enumerate(lines)]


def _records(graph: Sequence[Step], outcome: RunOutcome, store: Store) -> list[Record]:
    """Records of the run's artifacts, in the graph's order."""
    found = (store.get(outcome.steps[step.name].record_id or "") for step in graph)
    return [record for record in found if record is not None]


def _rows(records: Sequence[Record], store: Store) -> list[StageRow]:
    checkpoints = [
        Checkpoint(stage=r.stage or r.kind, checkpoint=r.name, digest=r.digest, step=r.step)
        for r in records
        if r.kind in CHECKPOINT_KINDS
    ]
    scores = [Scores.load(store.path(r) / file) for r in records if r.kind == "scores" for file in sorted(r.files)]
    return stage_table(checkpoints, scores)


def _draw(
    recipe: Recipe, records: Sequence[Record], rows: Sequence[StageRow], folder: Path, store: Store
) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    curves = {r.stage or r.name: store.path(r) / "metrics.jsonl" for r in records if r.kind == "training"}
    targets = {name: stage.evaluation.targets for name, stage in recipe.stages.items()}
    files = [folder / "learning_curves.png", folder / "stage_scores.png"]
    learning_curves(curves, files[0])
    stage_scores(rows, targets, files[1])
    return files
