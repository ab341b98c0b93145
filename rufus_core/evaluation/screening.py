"""What a screen says of each problem (PIPE-10), and what moves between two screens. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal

from rufus_core.settings import FilterSettings
from rufus_core.types import Frozen, Problem, Verdict, VerdictKind

Decision = Literal["kept", "too_easy", "too_hard", "unscored"]
DECISIONS: tuple[Decision, ...] = ("kept", "too_easy", "too_hard", "unscored")
MAX_BINS = 10
_MAX_REASON = 200  # characters


class Attempts(Frozen):
    """One sampler's attempts at one problem.

    Those that the infrastructure failed (aborted), or that the problem's own reference makes impossible to score, leave
    before the pass rate is taken. `lost_to` are their distinct reasons.
    """

    num_passed: int = 0
    num_scored: int = 0
    num_aborted: int = 0
    num_unscorable: int = 0
    lost_to: tuple[str, ...] = ()

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Attempts:
        passed = scored = aborted = unscorable = 0
        lost_to: dict[str, None] = {}
        for verdict in verdicts:
            if verdict.counts:
                scored += 1
                passed += verdict.passed
                continue
            aborted += verdict.kind is VerdictKind.ABORTED
            unscorable += verdict.kind is VerdictKind.UNSCORABLE
            lost_to[verdict.reason[:_MAX_REASON]] = None
        return cls(
            num_passed=passed,
            num_scored=scored,
            num_aborted=aborted,
            num_unscorable=unscorable,
            lost_to=tuple(lost_to),
        )

    @property
    def rate(self) -> float | None:
        """The share that passed; None where no attempt was scored."""
        return self.num_passed / self.num_scored if self.num_scored else None


class Screened(Frozen):
    """What a screen found for one problem: the attempts of each sampler, and what became of it.

    `unscored`: no attempt of any sampler was scored, so that nothing is known; such a problem doesn't stay.
    """

    id: str
    family: str
    source: str
    attempts: dict[str, Attempts]
    verdict: Decision

    @property
    def rate(self) -> float | None:
        """The best sampler's pass rate."""
        return max((each.rate for each in self.attempts.values() if each.rate is not None), default=None)


def screened(problem: Problem, attempts: Mapping[str, Attempts], settings: FilterSettings) -> Screened:
    """A problem stays if the pass rate of at least one sampler lies in the window."""
    rates = [each.rate for each in attempts.values() if each.rate is not None]
    verdict: Decision = "too_hard"
    if not rates:
        verdict = "unscored"
    elif any(map(settings.admits, rates)):
        verdict = "kept"
    elif any(settings.low_exclusive is None or rate > settings.low_exclusive for rate in rates):
        verdict = "too_easy"
    return Screened(
        id=problem.id, family=problem.family, source=problem.source, attempts=dict(attempts), verdict=verdict
    )


def count_decisions(rows: Iterable[Screened]) -> dict[str, int]:
    """How many problems each decision was made for, in the order of `DECISIONS`; those never made are left out."""
    counts = Counter[str](row.verdict for row in rows)
    return {name: counts[name] for name in DECISIONS if counts[name]}


def by_source(rows: Iterable[Screened]) -> dict[str, dict[str, int]]:
    """`count_decisions` of each source, in the order of its first problem."""
    groups: dict[str, list[Screened]] = defaultdict(list)
    for row in rows:
        groups[row.source].append(row)
    return {source: count_decisions(members) for source, members in groups.items()}


def histogram(rows: Sequence[Screened]) -> list[tuple[str, int]]:
    """How many problems have which pass rate: with up to ten attempts one bin for each count that can pass.

    A bin is named by its middle, for example `2/4`; of more than ten attempts, by tenths.
    """
    rates = [row.rate for row in rows if row.rate is not None]
    most = max((each.num_scored for row in rows for each in row.attempts.values()), default=0)
    bins = min(most, MAX_BINS)
    counts = Counter(round(rate * bins) for rate in rates)
    return [(f"{index}/{bins}", counts[index]) for index in range(bins + 1)] if bins else []


class Move(Frozen):
    """One problem in two screens. Rates are None where no attempt was scored."""

    id: str
    source: str
    old: Decision
    new: Decision
    old_rate: float | None
    new_rate: float | None

    @property
    def kind(self) -> Literal["stayed", "left", "joined", "out"]:
        if self.old == "kept":
            return "stayed" if self.new == "kept" else "left"
        return "joined" if self.new == "kept" else "out"


class Comparison(Frozen):
    """Two screens by problem id. `only_old` and `only_new` are ids that the other screen never saw."""

    moves: tuple[Move, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]

    def by_source(self) -> dict[str, dict[str, float]]:
        """For each source and for `all`: problems that stayed, left, joined and are out, and both mean pass rates."""
        groups: dict[str, list[Move]] = defaultdict(list)
        for move in self.moves:
            groups[move.source].append(move)
        if len(groups) > 1:
            groups["all"] = list(self.moves)
        return {source: _summary(members) for source, members in groups.items()}


def _summary(moves: Sequence[Move]) -> dict[str, float]:
    kinds = Counter(move.kind for move in moves)
    old = [move.old_rate for move in moves if move.old_rate is not None]
    new = [move.new_rate for move in moves if move.new_rate is not None]
    counts = {kind: float(kinds[kind]) for kind in ("stayed", "left", "joined", "out")}
    return counts | ({"old_rate": fmean(old)} if old else {}) | ({"new_rate": fmean(new)} if new else {})


def compare(old: Sequence[Screened], new: Sequence[Screened]) -> Comparison:
    """What became of each problem that both screens saw, in the order of the new one."""
    before = {row.id: row for row in old}
    after = {row.id for row in new}
    moves = [
        Move(
            id=row.id,
            source=row.source,
            old=before[row.id].verdict,
            new=row.verdict,
            old_rate=before[row.id].rate,
            new_rate=row.rate,
        )
        for row in new
        if row.id in before
    ]
    return Comparison(
        moves=tuple(moves),
        only_old=tuple(row.id for row in old if row.id not in after),
        only_new=tuple(row.id for row in new if row.id not in before),
    )
