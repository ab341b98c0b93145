"""The stage table: every checkpoint of a chain, with its change against the one above (PIPE-07, PIPE-08)."""

from __future__ import annotations

from collections.abc import Sequence

from rufus_core.evaluation.scores import Scores
from rufus_core.evaluation.statistics import compare, pass_at_1, protocol_differences
from rufus_core.types import Frozen


class Checkpoint(Frozen):
    """One link of the chain. The base is the first."""

    stage: str
    checkpoint: str
    digest: str
    step: int | None = None


class Cell(Frozen):
    """One benchmark on one checkpoint; shares in [0, 1].

    `parent_mean` and what follows are None where the parent was not measured under the same protocol;
    `other_protocol` says that it was measured, under another one (EVAL-07). `delta` is over the problems that both
    scored, so it differs from `mean - parent_mean` when samples were lost.
    """

    mean: float | None
    stderr: float | None
    n: int
    num_lost_samples: int = 0
    parent_mean: float | None = None
    parent_stderr: float | None = None
    delta: float | None = None
    ci95: tuple[float, float] | None = None
    other_protocol: bool = False

    @property
    def significant(self) -> bool:
        """Whether the change's 95% interval excludes 0."""
        return self.ci95 is not None and not self.ci95[0] <= 0.0 <= self.ci95[1]


class StageRow(Checkpoint):
    metrics: dict[str, Cell]  # by benchmark; one that was not measured is missing


def stage_table(checkpoints: Sequence[Checkpoint], scores: Sequence[Scores]) -> list[StageRow]:
    """One row for each checkpoint, in the given order: each is the parent of the next.

    Scores belong to a checkpoint by digest. Of several for one benchmark the last counts; for the change, the parent's
    last one under the child's protocol.
    """
    rows = []
    parent: list[Scores] = []
    for checkpoint in checkpoints:
        own = [one for one in scores if one.digest == checkpoint.digest]
        latest = {one.benchmark: one for one in own}
        metrics = {name: _cell(latest_scores, parent) for name, latest_scores in latest.items()}
        rows.append(StageRow(**checkpoint.model_dump(), metrics=metrics))
        parent = own
    return rows


def benchmark_names(rows: Sequence[StageRow]) -> list[str]:
    """Every benchmark of the table, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.metrics))


def _cell(child: Scores, parent: Sequence[Scores]) -> Cell:
    estimate = pass_at_1(child.per_problem)
    cell = Cell(mean=estimate.mean, stderr=estimate.stderr, n=estimate.n, num_lost_samples=estimate.num_lost_samples)
    candidates = [one for one in parent if one.benchmark == child.benchmark]
    comparable = [one for one in candidates if not protocol_differences(one, child)]
    if not comparable:
        return cell.model_copy(update={"other_protocol": bool(candidates)})
    before = pass_at_1(comparable[-1].per_problem)
    difference = compare(comparable[-1], child)
    return cell.model_copy(
        update={
            "parent_mean": before.mean,
            "parent_stderr": before.stderr,
            "delta": difference.delta,
            "ci95": difference.ci95,
        }
    )
