"""The offline analysis of a preference set by a reward model, as in the paper's Table 13."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable
from statistics import fmean

from rufus_core.data.preference_sets import Candidate
from rufus_core.ports.judging import RewardScorer
from rufus_core.rewards.preference import is_degenerate
from rufus_core.types import Frozen

SCALE_NOTE = "Scores have no shared zero across data sets: compare them within a row, and rank no set by them (RM-D3)."
HEADINGS = (
    "Dataset",
    "Original #",
    "Valid #",
    "Avg. Chosen Score",
    "Avg. Rejected Score",
    "Avg. Chosen Tokens",
    "Avg. Rejected Tokens",
)


class Invalid(enum.StrEnum):
    """Why a candidate isn't valid (RM-D1): the first of these that holds."""

    MISSING = "missing"  # no prompt, or not both responses to the same one
    EMPTY = "empty"
    EQUAL = "equal"
    DEGENERATE = "degenerate"
    TIE = "tie"  # neither response was preferred


class PreferenceReport(Frozen):
    """One data set by one reward model. Means are over the valid pairs that it scored, None where there is none.

    `num_candidates` is `num_valid` and all of `dropped`; `num_unscored` of the valid ones have a score that is no
    finite number. `agreement` is the share in which the chosen response scores higher. Tokens are the given counter's.
    """

    dataset: str
    scorer: str
    num_candidates: int
    num_valid: int
    dropped: dict[str, int]
    num_unscored: int
    chosen: float | None = None
    rejected: float | None = None
    margin: float | None = None
    agreement: float | None = None
    chosen_tokens: float | None = None
    rejected_tokens: float | None = None

    @property
    def row(self) -> tuple[str, ...]:
        """The cells under HEADINGS, rounded as in the paper."""

        def cell(value: float | None, digits: int) -> str:
            return "-" if value is None else f"{value:.{digits}f}"

        return (
            self.dataset,
            f"{self.num_candidates:,}",
            f"{self.num_valid:,}",
            cell(self.chosen, 2),
            cell(self.rejected, 2),
            cell(self.chosen_tokens, 1),
            cell(self.rejected_tokens, 1),
        )


def invalid(candidate: Candidate) -> Invalid | None:
    """Why a candidate has to go; None for a valid one."""
    chosen, rejected = candidate.chosen, candidate.rejected
    if chosen is None or rejected is None or not any(message.role == "user" for message in candidate.prompt):
        return Invalid.MISSING
    if not chosen.strip() or not rejected.strip():
        return Invalid.EMPTY
    if chosen == rejected:
        return Invalid.EQUAL
    if is_degenerate(chosen) or is_degenerate(rejected):
        return Invalid.DEGENERATE
    return Invalid.TIE if candidate.tie else None


def analyse(
    dataset: str, candidates: Iterable[Candidate], scorer: RewardScorer, count_tokens: Callable[[str], int]
) -> PreferenceReport:
    """Raises InfrastructureError when the scorer fails."""
    dropped: Counter[str] = Counter()
    valid: list[tuple[Candidate, str, str]] = []
    for candidate in candidates:
        if reason := invalid(candidate):
            dropped[reason] += 1
        else:
            valid.append((candidate, candidate.chosen or "", candidate.rejected or ""))
    scores = scorer.scores([(c.prompt, response) for c, *responses in valid for response in responses])
    pairs = zip(valid, scores[0::2], scores[1::2], strict=True)
    scored = [
        (good, bad, count_tokens(chosen), count_tokens(rejected))
        for (_, chosen, rejected), good, bad in pairs
        if math.isfinite(good) and math.isfinite(bad)
    ]
    report = PreferenceReport(
        dataset=dataset,
        scorer=scorer.identity,
        num_candidates=len(valid) + dropped.total(),
        num_valid=len(valid),
        dropped=dict(sorted(dropped.items())),
        num_unscored=len(valid) - len(scored),
    )
    if not scored:
        return report
    chosen, rejected, chosen_tokens, rejected_tokens = (fmean(column) for column in zip(*scored, strict=True))
    means = {
        "chosen": chosen,
        "rejected": rejected,
        "margin": chosen - rejected,
        "agreement": fmean(good > bad for good, bad, *_ in scored),
        "chosen_tokens": chosen_tokens,
        "rejected_tokens": rejected_tokens,
    }
    return report.model_copy(update=means)
