"""Progress of a job, one JSON line a step: what progress bars, curves and trackers read."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self


class Reporter:
    """Appends `{"step", "total", "time", "metrics"}` lines to `path`; a reader may follow the file as it grows."""

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
        line = {"step": step, "total": self.total, "metrics": dict(metrics)}
        if timed:
            line["time"] = time.time()
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
