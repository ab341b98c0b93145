"""Learning-rate schedules. Steps are counted from 1."""

from __future__ import annotations

import math

from rufus_core.settings import OptimizerSettings


def learning_rate(step: int, total_steps: int | None, settings: OptimizerSettings) -> float:
    """The rate used by optimizer step `step`: a linear warm-up to `lr_peak`, then constant or a cosine (SFT-04).

    The peak is reached at step `warmup_steps` and `lr_min` at step `total_steps`, where it then stays.

    Raises:
        ValueError: `step` is below 1, or a cosine has no `total_steps`.
    """
    if step < 1:
        raise ValueError(f"steps are counted from 1, not {step}")
    if step < settings.warmup_steps:
        return settings.lr_peak * step / settings.warmup_steps
    if settings.schedule == "constant" or settings.lr_min is None:
        return settings.lr_peak
    if total_steps is None:
        raise ValueError("a cosine schedule needs the total number of steps")
    decay_steps = max(1, total_steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / decay_steps)
    return settings.lr_min + (settings.lr_peak - settings.lr_min) * (1 + math.cos(math.pi * progress)) / 2
