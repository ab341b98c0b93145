"""What the models of a synthesis used, over all the commands that it took."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from rufus_core.data.synthesis.dialogue import Entry
from rufus_core.data.synthesis.journal import Journal
from rufus_core.rewards.usage import JudgeUsage, Prices, UsageMeter
from rufus_core.types import Json

TEACHER_PRICES = "RUFUS_TEACHER_PRICES"


class Spent(Entry):
    """What one part's model used since the line before."""

    number: int
    part: str
    usage: JudgeUsage

    @property
    def id(self) -> str:
        return str(self.number)


class Spending:
    """Notes what the meters have counted; of a command that is killed, all but what it was asking for."""

    def __init__(self, path: Path, meters: Mapping[str, UsageMeter]) -> None:
        self._journal, self._meters = Journal(path, Spent), meters

    def __enter__(self) -> Self:
        self._journal.__enter__()
        self._lines = list(self._journal.finished.values())
        self._numbers = itertools.count(len(self._lines))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.note()
        self._journal.__exit__(kind, error, at)

    def note(self) -> None:
        """Safe from several threads."""
        for part, meter in self._meters.items():
            usage = meter.since_last()
            if usage != JudgeUsage():
                spent = Spent(number=next(self._numbers), part=part, usage=usage)
                self._journal.keep(spent)
                self._lines.append(spent)

    def totals(self) -> dict[str, dict[str, Json]]:
        """By part: counts, seconds, the mean wait for a reply, and the cost where prices are set.

        Raises ConfigError for prices that can't be read.
        """
        return {part: _told(part, usage) for part, usage in _summed(self._lines).items()}


def _summed(lines: Iterable[Spent]) -> dict[str, JudgeUsage]:
    sums: dict[str, JudgeUsage] = defaultdict(JudgeUsage)
    for line in lines:
        sums[line.part] += line.usage
    return dict(sums)


def _told(part: str, usage: JudgeUsage) -> dict[str, Json]:
    counts = asdict(usage)
    answered, unanswered = counts.pop("verdicts"), counts.pop("unscored")
    told = {"answered": answered, "unanswered": unanswered, **counts}
    told["mean_seconds"] = usage.seconds / max(answered + unanswered, 1)
    prices = Prices.from_environment() if part == "judge" else Prices.from_environment(TEACHER_PRICES)
    return told | ({"cost": usage.cost(prices)} if prices else {})
