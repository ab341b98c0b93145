"""Figures of a run: learning curves of every stage, and what each stage changed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rufus_core.evaluation.table import Cell, StageRow

# Okabe-Ito colours: told apart with every kind of colour vision
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8C8C8C"
# Metric: label. The first one that a stage logged is drawn.
PRIMARY = {"reward": "reward", "loss": "loss"}
SECONDARY = {"response_tokens": "response tokens"}
NUM_COLUMNS = 4
Z95 = 1.959964
STYLE: dict[str, Any] = {"fontsize": 9}

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]  # steps, values


def learning_curves(metrics_by_stage: Mapping[str, Path], out: Path) -> None:
    """One panel for each stage: reward (SFT: loss) by step with a smoothed line, response length on the right.

    A metrics file has one JSON object a line, with `step` and `metrics`.
    """
    num_rows = max(1, math.ceil(len(metrics_by_stage) / NUM_COLUMNS))
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)  # inches
    figure = Figure(figsize=(14, 0.4 + 2.7 * num_rows), layout=layout)
    axes = figure.subplots(num_rows, NUM_COLUMNS, squeeze=False).ravel()
    for axis, (stage, path) in zip(axes, metrics_by_stage.items(), strict=False):
        _learning_curve(axis, stage, read_metrics(path))
    for axis in axes[len(metrics_by_stage) :]:
        axis.set_visible(False)
    figure.savefig(out, dpi=130)


def stage_scores(rows: Sequence[StageRow], targets: Mapping[str, Sequence[str]], out: Path) -> None:
    """For each stage's target benchmarks: the parent's mean and the stage's, each with its 95% interval.

    Targets that were not measured on both under one protocol are left out.
    """
    changes = [
        (row.stage, name, row.metrics[name])
        for row in rows
        for name in targets.get(row.stage, ())
        if name in row.metrics and row.metrics[name].delta is not None
    ]
    figure = Figure(figsize=(9, 1.5 + 0.5 * max(1, len(changes))), layout="constrained")
    axis = figure.subplots()
    for y, (_, _, cell) in enumerate(changes):
        _draw_change(axis, y, cell)
    axis.set_yticks(range(len(changes)), [_change_label(stage, name) for stage, name, _ in changes], **STYLE)
    axis.set_ylim(len(changes) - 0.4, -0.6)
    axis.set_xlim(0, 100)
    axis.set_xlabel("pass@1, percent (bars: 95% interval of each mean)", **STYLE)
    axis.plot([], [], "o", color=GREY, markerfacecolor="white", label="parent")
    axis.plot([], [], "o", color=BLUE, label="after the stage")
    figure.legend(loc="outside upper right", ncols=2, frameon=False, **STYLE)
    tidy(axis, "x")
    figure.savefig(out, dpi=130)


def read_metrics(path: Path) -> dict[str, Curve]:
    """Curves by metric. A step that a resume repeated counts once, as last written; an unfinished line is skipped."""
    values: dict[str, dict[int, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # cut off by a crash, or still being written
        for name, value in entry["metrics"].items():
            values.setdefault(name, {})[entry["step"]] = float(value)  # also "NaN"
    curves = {}
    for name, by_step in values.items():
        steps = np.array(sorted(by_step), dtype=np.float64)
        curves[name] = (steps, np.array([by_step[int(step)] for step in steps], dtype=np.float64))
    return curves


def smooth(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Centred moving mean; near the ends over what there is. A NaN leaves a gap."""
    radius = window // 2
    return np.array([values[max(0, i - radius) : i + radius + 1].mean() for i in range(len(values))])


def _learning_curve(axis: Any, stage: str, curves: Mapping[str, Curve]) -> None:
    axis.set_title(stage.replace("_", " "), loc="left", fontsize=10, fontweight="bold")
    axis.set_xlabel("step", **STYLE)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    tidy(axis, "y")
    _draw_curve(axis, curves, PRIMARY, BLUE, "-")
    if any(name in curves for name in SECONDARY):
        right = axis.twinx()
        right.spines["top"].set_visible(False)
        _draw_curve(right, curves, SECONDARY, ORANGE, (0, (4, 1.5)))


def _draw_curve(axis: Any, curves: Mapping[str, Curve], labels: Mapping[str, str], colour: str, dashes: Any) -> None:
    name = next((name for name in labels if name in curves), None)
    if name is None:
        return
    steps, values = curves[name]
    axis.plot(steps, values, color=colour, alpha=0.25, linewidth=0.8)
    axis.plot(steps, smooth(values, max(1, len(values) // 10)), color=colour, linewidth=1.7, linestyle=dashes)
    axis.set_ylabel(labels[name], color=colour, **STYLE)
    axis.tick_params(axis="y", colors=colour, labelsize=8)


def _draw_change(axis: Any, y: int, cell: Cell) -> None:
    assert cell.mean is not None
    assert cell.parent_mean is not None
    assert cell.delta is not None
    before, after = 100 * cell.parent_mean, 100 * cell.mean
    axis.plot([before, after], [y - 0.08, y + 0.08], color=GREY, linewidth=1, zorder=1)
    for mean, stderr, colour, fill, offset in (
        (before, cell.parent_stderr, GREY, "white", -0.08),
        (after, cell.stderr, BLUE, BLUE, 0.08),
    ):
        half = 100 * Z95 * (stderr or 0.0)
        axis.errorbar(mean, y + offset, xerr=half, fmt="o", color=colour, markerfacecolor=fill, capsize=3, zorder=2)
    text = f"{100 * cell.delta:+.1f}{'*' if cell.significant else ''}"
    axis.annotate(text, (1.01, y), xycoords=("axes fraction", "data"), va="center", **STYLE)


def _change_label(stage: str, benchmark: str) -> str:
    return benchmark if stage in benchmark else f"{stage}\n{benchmark}"


def tidy(axis: Any, grid: str) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis=grid, color="#E5E5E5", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8)
