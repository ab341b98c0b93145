r"""Whether a mathematical answer equals the reference (RRL-R1): Math-Verify in processes that can be killed.

A parser that meets `9^{9^{9^{9}}}` does not come back, and Math-Verify's alarm works only in a main thread. So what
looks too expensive is never parsed, and the rest is compared in worker processes under a budget of processor time.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction
from typing import Self

from rufus_core.errors import InfrastructureError
from rufus_core.rewards.math_bounds import MAX_ANSWER, MAX_CHARACTERS, too_expensive
from rufus_core.rewards.math_pool import ComparisonPool, Limits, Outcome
from rufus_core.rewards.math_text import whole
from rufus_core.types import Verdict

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_FRACTION = re.compile(r"([+-]?)(?:\\[dtc]?frac\{(\d{1,40})\}\{(\d{1,40})\}|(\d{1,40})/(\d{1,40}))", re.ASCII)
_SPACED_DIGITS = re.compile(r"[\d\s]*\d\s+\d[\d\s]*", re.ASCII)
_GROUPED = re.compile(r"\d{1,3}(?: \d{3})+", re.ASCII)
_REMEMBERED = 10_000
_REMEMBERED_CHARACTERS = 400  # longer pairs are compared anew


class MathVerifier:
    """Compares answers with references. Safe to share among threads; processes start when first needed.

    Use as a context manager: leaving it ends the processes.

    Args:
        deadline_seconds: wall-clock time of a comparison from when a worker begins it; the verdict comes no later than
            100 ms after. A comparison whose worker was kept waiting by the machine is aborted.
        cpu_seconds: processor time for reading the reference, and again for reading and comparing the answer. What
            takes longer fails, however busy or idle the machine is.
        workers: comparisons at the same time.
    """

    def __init__(
        self, deadline_seconds: float = 5.0, cpu_seconds: float = 0.75, workers: int = 2, memory_bytes: int = 1 << 30
    ) -> None:
        self._pool = ComparisonPool(workers, Limits(deadline_seconds, cpu_seconds, memory_bytes))
        self._verdicts: OrderedDict[tuple[str, str], Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._pool.close()

    @property
    def longest_lateness_seconds(self) -> float:
        """By how much the longest comparison so far passed its deadline; below zero if none did."""
        return self._pool.longest_seconds - self._pool.limits.deadline_seconds

    def verify(self, gold: str, text: str) -> Verdict:
        r"""Whether `text` states a value equal to `gold`. The two are not interchangeable.

        Which part of a response is its answer is not decided here (see `extract`). Plain numbers and fractions, bare or
        in `$...$` or `\boxed{}`, are compared exactly without a worker. A reference that can't be read or costs too
        much is unscorable, an answer is wrong then; without a worker the verdict is aborted.
        """
        known = _compare_numbers(_unwrap(gold), _unwrap(text), text)
        if known is not None:
            return known
        key = (gold, text)
        with self._lock:
            remembered = self._verdicts.get(key)
        if remembered is not None:
            return remembered
        try:
            verdict = self._compare(gold, text)
        except InfrastructureError as error:
            return Verdict.aborted(str(error))
        if verdict is None:
            return Verdict.aborted("the machine had no time to compare it before the deadline")
        if len(gold) + len(text) <= _REMEMBERED_CHARACTERS:
            with self._lock:
                self._verdicts[key] = verdict
                if len(self._verdicts) > _REMEMBERED:
                    self._verdicts.popitem(last=False)
        return verdict

    def _compare(self, gold: str, text: str) -> Verdict | None:
        """None if the machine left no time for it."""
        if fault := _cost(gold):
            return Verdict.unscorable(f"the reference could not be compared in time: {fault}")
        if fault := _cost(text):
            return self._blame(gold, f"the answer could not be compared in time: {fault}", text)
        match self._pool.compare(gold, text):
            case Outcome.UNREADABLE:
                return Verdict.unscorable("the reference could not be read")
            case Outcome.GOLD_TOO_SLOW:
                return Verdict.unscorable("the reference could not be read in time")
            case Outcome.TOO_SLOW:
                return self._blame(gold, "the answer could not be compared in time", text)
            case Outcome.DIED:
                return self._blame(gold, "comparing it ended the worker", text)
            case Outcome.KEPT_WAITING:
                return None
            case outcome:
                return Verdict.binary(outcome is Outcome.EQUAL, "compared by Math-Verify", text)

    def _blame(self, gold: str, reason: str, text: str) -> Verdict | None:
        """A failure of the answer, unless the reference can't even be compared with a 1: then it is itself at fault."""
        if _rational(_unwrap(gold)) is None:
            with_one = self.verify(gold, "$1$")
            if not with_one.counts:
                return with_one
        return Verdict.binary(False, reason, text)


def _cost(text: str) -> str:
    return too_expensive(text, MAX_CHARACTERS if whole(text) is None else MAX_ANSWER)


def _compare_numbers(reference: str, answer: str, text: str) -> Verdict | None:
    """The verdict on two plain numbers or fractions; None where there is more to it."""
    if _NUMBER.fullmatch(reference):
        if _NUMBER.fullmatch(answer):
            return Verdict.binary(Decimal(reference) == Decimal(answer), "compared as numbers", answer)
        if _SPACED_DIGITS.fullmatch(answer) and not _GROUPED.fullmatch(answer):  # no number: the parser reads a product
            return Verdict.binary(False, "digits apart are not a number", answer)
    left, right = _rational(reference), _rational(answer)
    if left is None or right is None or (left != right and ("." in reference or "." in answer)):
        return None
    return Verdict.binary(left == right, "compared as fractions", text)


def _rational(text: str) -> Fraction | None:
    """The value of a number or of a fraction of two whole numbers."""
    if len(text) <= 60 and _NUMBER.fullmatch(text):
        return Fraction(text)
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    sign, *digits = match.groups()
    numerator, denominator = (int(part) for part in digits if part is not None)
    return Fraction(-numerator if sign == "-" else numerator, denominator) if denominator else None


def _unwrap(text: str) -> str:
    """The text without what encloses a whole answer."""
    inner = whole(text)
    return text if inner is None else inner
