"""A job's progress lines."""

from __future__ import annotations

import json
import math
from pathlib import Path

from rufus_core.training.reporter import Reporter


def _strict(line: str) -> dict[str, dict[str, float | str]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    entry: dict[str, dict[str, float | str]] = json.loads(line, parse_constant=refuse)
    return entry


def test_every_line_is_json_and_a_nan_stays_visible(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    metrics = {"loss": math.nan, "high": math.inf, "low": -math.inf, "reward": 0.25}
    with Reporter(path, 9) as report:
        report.log(3, metrics)
    entry = _strict(path.read_text())
    assert (entry["step"], entry["total"]) == (3, 9)
    assert entry["metrics"] == {"loss": "NaN", "high": "Infinity", "low": "-Infinity", "reward": 0.25}
    read = {name: float(value) for name, value in entry["metrics"].items()}
    assert math.isnan(read.pop("loss"))
    assert read == {"high": math.inf, "low": -math.inf, "reward": 0.25}


def test_an_untimed_line_has_no_clock_in_it(tmp_path: Path) -> None:
    """Artifacts of equal runs are equal bytes."""
    with Reporter(tmp_path / "m.jsonl", 1) as report:
        report.log(1, {"loss": 2.0}, timed=False)
    assert _strict((tmp_path / "m.jsonl").read_text()) == {"step": 1, "total": 1, "metrics": {"loss": 2.0}}
