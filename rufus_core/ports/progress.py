"""What a job reports while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


class MetricSink(Protocol):
    """Where a job reports its progress. The core writes lines to a file; adapters pass them on."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...


@dataclass(frozen=True, slots=True)
class StepProgress:
    """One line of a job's progress. `step` counts from 1 to `total`; both are None where nothing is counted."""

    step: int | None = None
    total: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    message: str = ""
