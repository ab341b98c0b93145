"""Statistics of benchmark scores. The unit is the problem: samples of one problem are not independent.

A sample that is None was lost to the infrastructure. It is left out and counted, never taken for a zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rufus_core.errors import DataError
from rufus_core.evaluation.scores import Scores

PerProblem = Mapping[str, Sequence[float | None]]

NUM_RESAMPLES = 10_000
SEED = 20_260_924
_RESAMPLED_VALUES_AT_ONCE = 2_000_000  # bounds memory to some 32 MB


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` problems. `mean` is None without a problem, `stderr` with fewer than two."""

    mean: float | None
    stderr: float | None
    n: int
    num_lost_samples: int
    num_undefined_problems: int  # without a scored sample, or with fewer than k


@dataclass(frozen=True, slots=True)
class Difference:
    """Child minus parent over the `n` problems that both scored. `ci95` is None with fewer than two."""

    delta: float | None
    ci95: tuple[float, float] | None
    n: int


def pass_at_1(per_problem: PerProblem) -> Estimate:
    """Mean over problems of the mean over samples (avg@n), with its standard error clustered by problem (EVAL-01)."""
    return _estimate(per_problem, {key: _mean(_scored(samples)) for key, samples in per_problem.items()})


def pass_at_k(per_problem: PerProblem, k: int) -> Estimate:
    """Unbiased pass@k, 1 - C(n - c, k) / C(n, k) for c passes among n samples (arXiv:2107.03374, eq. 1).

    A problem with fewer than k scored samples is undefined and left out.

    Raises:
        ValueError: `k` is below 1, or a score is neither 0 nor 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    return _estimate(per_problem, {key: _pass_at_k(_scored(samples), k) for key, samples in per_problem.items()})


def paired_difference(parent: PerProblem, child: PerProblem) -> Difference:
    """Mean difference over the problems that both scored, with a percentile bootstrap over problems (EVAL-07, EVAL-08).

    The seed is fixed and problems are ordered by id, so the interval depends on the scores alone.
    """
    pairs = [(_mean(_scored(parent[key])), _mean(_scored(child[key]))) for key in sorted(parent.keys() & child.keys())]
    differences_P = np.array([after - before for before, after in pairs if before is not None and after is not None])
    if len(differences_P) == 0:
        return Difference(None, None, 0)
    interval = _bootstrap_interval(differences_P) if len(differences_P) > 1 else None
    return Difference(float(differences_P.mean()), interval, len(differences_P))


def compare(parent: Scores, child: Scores) -> Difference:
    """The paired difference of two measurements of one benchmark.

    Raises:
        DataError: the benchmarks or the protocols differ (EVAL-07).
    """
    if parent.benchmark != child.benchmark:
        raise DataError(f"{child.benchmark} can't be compared with {parent.benchmark}")
    differing = protocol_differences(parent, child)
    if differing:
        raise DataError(
            f"{child.benchmark} was measured under different protocols for {parent.checkpoint} and {child.checkpoint}: "
            + "; ".join(differing),
            hint="measure both under one protocol",
        )
    return paired_difference(parent.per_problem, child.per_problem)


def protocol_differences(parent: Scores, child: Scores) -> list[str]:
    """One line for each entry in which the protocols differ."""
    missing = object()
    lines = []
    for key in sorted(parent.protocol.keys() | child.protocol.keys()):
        before, after = parent.protocol.get(key, missing), child.protocol.get(key, missing)
        if before != after:
            lines.append(f"{key} {_shown(before, missing)} against {_shown(after, missing)}")
    return lines


def _shown(value: object, missing: object) -> str:
    return "(not given)" if value is missing else repr(value)


def _scored(samples: Sequence[float | None]) -> list[float]:
    return [sample for sample in samples if sample is not None]


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _pass_at_k(samples: list[float], k: int) -> float | None:
    if any(sample not in (0.0, 1.0) for sample in samples):
        raise ValueError("pass@k needs scores of 0 or 1")
    n, c = len(samples), round(sum(samples))
    return None if n < k else 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _estimate(per_problem: PerProblem, values: Mapping[str, float | None]) -> Estimate:
    defined_P = np.array([values[key] for key in sorted(values) if values[key] is not None], dtype=np.float64)
    n = len(defined_P)
    return Estimate(
        mean=float(defined_P.mean()) if n else None,
        stderr=float(defined_P.std(ddof=1) / math.sqrt(n)) if n > 1 else None,
        n=n,
        num_lost_samples=sum(sample is None for samples in per_problem.values() for sample in samples),
        num_undefined_problems=len(values) - n,
    )


def _bootstrap_interval(differences_P: NDArray[np.float64]) -> tuple[float, float]:
    rng = np.random.default_rng(SEED)
    n = len(differences_P)
    rows = max(1, _RESAMPLED_VALUES_AT_ONCE // n)
    means = [
        differences_P[rng.integers(n, size=(min(rows, NUM_RESAMPLES - start), n))].mean(axis=1)
        for start in range(0, NUM_RESAMPLES, rows)
    ]
    # rounded, so that a bound of 0 is 0 and not what summing thirds leaves of it
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5]).round(12)
    return float(low), float(high)
