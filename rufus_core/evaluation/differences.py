"""Scores of two checkpoints side by side, with the paired change where they were measured alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from rufus_core.evaluation.scores import Scores
from rufus_core.evaluation.statistics import Difference, paired_difference, pass_at_1, protocol_differences
from rufus_core.lineage.newest import newest_first
from rufus_core.lineage.record import Record
from rufus_core.lineage.resolve import Ref
from rufus_core.lineage.sharing import fetch
from rufus_core.lineage.store import Store
from rufus_core.types import Frozen


class ScoreChange(Frozen):
    """One benchmark; shares in [0, 1]. Without a `delta`, `why` says why the two are not comparable."""

    benchmark: str
    old: float | None = None
    new: float | None = None
    delta: float | None = None
    ci95: tuple[float, float] | None = None
    n: int = 0  # problems that both scored
    why: str = ""


def score_changes(store: Store, old: Ref, new: Ref) -> list[ScoreChange]:
    """Every benchmark that was measured on one of two checkpoints, or that is in one of two artifacts of scores.

    Of several measurements the newest two of one protocol count, else the newest two.

    Raises:
        DataError: an artifact of scores can't be read.
    """
    before, after = _by_benchmark(store, old), _by_benchmark(store, new)
    return [_change(name, before.get(name, []), after.get(name, [])) for name in sorted(before.keys() | after.keys())]


def _change(benchmark: str, before: Sequence[Scores], after: Sequence[Scores]) -> ScoreChange:
    pairs = list(product(before, after))
    if not pairs:
        missing = "first" if after else "second"
        return ScoreChange(
            benchmark=benchmark,
            old=pass_at_1(before[0].per_problem).mean if before else None,
            new=pass_at_1(after[0].per_problem).mean if after else None,
            why=f"not measured on the {missing}",
        )
    old, new = next((pair for pair in pairs if pair[0].protocol == pair[1].protocol), pairs[0])
    differing = protocol_differences(old, new)
    change = None if differing else paired_difference(old.per_problem, new.per_problem)
    return ScoreChange(
        benchmark=benchmark,
        old=pass_at_1(old.per_problem).mean,
        new=pass_at_1(new.per_problem).mean,
        delta=change.delta if change else None,
        ci95=change.ci95 if change else None,
        n=change.n if change else 0,
        why=_why(differing, change),
    )


def _why(differing: Sequence[str], change: Difference | None) -> str:
    if differing:
        return f"other protocol: {'; '.join(differing)}"
    return "" if change and change.n else "no problem was scored on both"


def _by_benchmark(store: Store, ref: Ref) -> dict[str, list[Scores]]:
    """Measurements of a checkpoint, or those in an artifact of scores, the newest first."""
    found: dict[str, list[Scores]] = {}
    step = ref.step if ref.subfolder else None
    for record in _records(store, ref.record):
        for file in sorted(record.files):
            scores = Scores.load(fetch(store, record) / file)
            if record.id == ref.record.id or (scores.digest, scores.step) == (ref.record.digest, step):
                found.setdefault(scores.benchmark, []).append(scores)
    return found


def _records(store: Store, record: Record) -> Iterator[Record]:
    """Artifacts of scores that may tell of a record's."""
    if record.kind == "scores":
        yield record
        return
    stage = record.stage or record.kind
    for name in store.names():
        if name == f"scores/{stage}" or name.startswith(f"evals/{stage}/"):
            for each in newest_first(store, name):
                if isinstance(each, Record) and any(i.digest == record.digest for i in each.inputs.values()):
                    yield each
