"""What a user should know of a stage while it trains and after: short steps, skipped updates, truncated responses.

Pure: it reads the metrics of each step, as they are logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

TRUNCATION_LIMIT = 0.1  # CRL-T8 and the trigger suggested for it: more than 10% ...
TRUNCATION_STEPS = 5  # ... for five rollouts in a row
_COUNTED = "rollouts/"
_OF_STAGE = "total/"


class Monitor:
    """Warns when something begins that costs gradient; what goes on is not told again."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._truncated_in_a_row = 0

    def warnings(self, step: int, metrics: Mapping[str, float]) -> Iterator[str]:
        """What the metrics of the next step, `step`, give reason to tell."""
        for kind, warning in self._reasons(step, metrics):
            if kind not in self._told:
                self._told.add(kind)
                yield warning

    def _reasons(self, step: int, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        if short := int(metrics.get("rollouts/short_groups", 0)):
            rounds = int(metrics["rollouts/rounds"])
            yield "short", f"step {step} trains on what was accepted: {short} groups were missing after round {rounds}"
        if skipped := int(metrics.get("skipped_updates", 0)):
            yield "skipped", f"step {step} skipped {skipped} optimizer steps, for nothing carried a gradient"
        ratio = metrics.get("truncation_ratio", 0.0)
        self._truncated_in_a_row = self._truncated_in_a_row + 1 if ratio > TRUNCATION_LIMIT else 0
        if self._truncated_in_a_row >= TRUNCATION_STEPS:
            yield (
                "truncated",
                f"step {step} is the {self._truncated_in_a_row}th in a row with over {TRUNCATION_LIMIT:.0%} of the "
                f"responses truncated ({ratio:.0%}): give more response_budget_tokens, from a step on by `phases`",
            )


def stage_totals(rows: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Sums over all steps of a stage: rollouts by what became of them, skipped updates, and how many steps were
    short, skipped an update, or had too many truncated responses."""
    totals: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        totals[_OF_STAGE + name] = totals.get(_OF_STAGE + name, 0.0) + value

    for _, metrics in rows:
        for name, value in metrics.items():
            if name.startswith(_COUNTED) or name == "skipped_updates":
                add(name, value)
        add("steps_that_skipped", float(metrics.get("skipped_updates", 0) > 0))
        if any(name.startswith(_COUNTED) for name in metrics):
            add("steps_short", float(metrics["rollouts/short_groups"] > 0))
            add("steps_truncated", float(metrics.get("truncation_ratio", 0.0) > TRUNCATION_LIMIT))
    return totals


def remarks(totals: Mapping[str, float], steps: int) -> Iterator[str]:
    """What a user should know of a stage of this many steps that has ended, by its totals."""

    def of(name: str) -> int:
        return int(totals.get(_OF_STAGE + name, 0))

    if of("steps_short"):
        missing = of("rollouts/short_groups")
        yield f"{of('steps_short')} of {steps} steps were short of groups, of {missing} in all"
    if of("steps_that_skipped"):
        yield f"{of('steps_that_skipped')} of {steps} steps skipped {of('skipped_updates')} optimizer steps in all"
    if of("steps_truncated") >= TRUNCATION_STEPS:
        yield f"{of('steps_truncated')} of {steps} steps had over {TRUNCATION_LIMIT:.0%} of their responses truncated"
