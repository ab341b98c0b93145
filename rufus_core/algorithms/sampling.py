"""Dynamic sampling: which groups of a rollout are trained on (RRL-T6, GA-T1, CA-T1)."""

from __future__ import annotations

from rufus_core.settings import DynamicSamplingSettings

TOLERANCE = 1e-9  # a mean of rewards that equals a bound may miss it by rounding


def in_window(mean: float, window: DynamicSamplingSettings) -> bool:
    """Whether a group with this mean has something to teach. (0, 1) drops all-fail and all-pass groups.

    The mean is that of the raw verifier scores, before any shaping, over the members that were scored; it is NaN for
    a group without one, which is in no window.
    """
    return (
        mean > window.low_exclusive + TOLERANCE
        and (window.high_inclusive is None or mean <= window.high_inclusive + TOLERANCE)
        and (window.high_exclusive is None or mean < window.high_exclusive - TOLERANCE)
    )
