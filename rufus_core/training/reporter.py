"""Progress of a job, one JSON line a step: what progress bars, curves and trackers read."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

CURVES = "metrics.jsonl"  # in a training's artifact: what its Reporter wrote


class Reporter:
    """Appends `{"step", "total", "time", "metrics"}` lines to `path`; a reader may follow the file as it grows.

    Some lines are `{"message", "time"}` or `{"warning", "time"}` instead.

    JSON has no NaN and no infinities: they are the strings "NaN", "Infinity" and "-Infinity", which `float` reads.
    """

    def __init__(self, path: Path, total: int) -> None:
        self._path, self.total = path, total

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def log(self, step: int, metrics: Mapping[str, float], timed: bool = True) -> None:
        line = {"step": step, "total": self.total, "metrics": {k: _written(v) for k, v in metrics.items()}}
        if timed:
            line["time"] = time.time()
        self._write(line)

    def say(self, message: str) -> None:
        """Tell what keeps the job busy while no step ends."""
        self._write({"message": message, "time": time.time()})

    def warn(self, message: str) -> None:
        """Tell what the user should know, although the job goes on."""
        self._write({"warning": message, "time": time.time()})

    def _write(self, line: Mapping[str, object]) -> None:
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()


def reported(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Step and metrics of each line that a Reporter wrote; nothing where there is no file."""
    if path.exists():
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            yield line["step"], {name: float(value) for name, value in line["metrics"].items()}


def _written(value: float) -> float | str:
    return value if math.isfinite(value) else json.dumps(float(value))
