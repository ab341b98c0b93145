"""One simulated step as a figure: what runs over time, and what the GPUs do meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rufus_core.evaluation.figures import BLUE, GREY, ORANGE, STYLE, tidy
from rufus_core.recipe.simulation.report import Simulated
from rufus_core.recipe.simulation.step import StepResult

# Okabe-Ito, as the other figures; idle kinds are warm.
COLOURS = {
    "decode": BLUE,
    "prefill": "#56B4E9",
    "update": "#CCCCCC",
    "train": GREY,
    "gap": "#F0E442",
    "tail": ORANGE,
    "down": "#000000",
    "other_side": "#E69F00",
}
NUM_POINTS = 400  # of a curve


def draw_steps(simulated: Sequence[Simulated], title: str, out: Path) -> None:
    """A panel for each count of nodes over one time axis, and below them the shares of GPU time. Writes a PNG."""
    figure = Figure(figsize=(9, 1.9 + 2.4 * len(simulated)), layout="constrained")
    heights = [2.0] * len(simulated) + [0.7 + 0.45 * len(simulated)]
    *panels, shares = figure.subplots(len(simulated) + 1, 1, gridspec_kw={"height_ratios": heights})
    longest = max(each.result.seconds for each in simulated)
    for axis, each in zip(panels, simulated, strict=True):
        _draw_step(axis, each, longest)
    panels[-1].set_xlabel("seconds of the step", **STYLE)
    _draw_shares(shares, simulated)
    figure.legend(*shares.get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    figure.savefig(out, dpi=130, format="png")


def _draw_step(axis: Any, simulated: Simulated, longest: float) -> None:
    result = simulated.result
    times, running, busy = curves(result)
    start, end = result.update_seconds, result.update_seconds + result.rollout_seconds
    axis.fill_between(start + times, running, step="post", color=BLUE, alpha=0.35, linewidth=0)
    axis.axvspan(0, start, color=COLOURS["update"], linewidth=0)
    axis.axvspan(end, result.seconds, color=COLOURS["train"], alpha=0.5, linewidth=0)
    axis.set_xlim(0, longest)
    axis.set_ylim(0)
    axis.set_ylabel("sequences that run", color=BLUE, **STYLE)
    axis.set_title(f"{simulated.nodes} nodes: {result.seconds:,.0f} s", loc="left", fontsize=9)
    tidy(axis, "y")
    right = axis.twinx()
    right.step(start + times, 100 * busy, where="post", color=ORANGE, linewidth=1.2)
    right.set_ylim(0, 105)
    right.set_ylabel("engines at work, %", color=ORANGE, **STYLE)
    right.spines["top"].set_visible(False)
    right.tick_params(labelsize=8)


def curves(result: StepResult) -> tuple[Any, Any, Any]:
    """Times in the rollout [P], sequences that run then [P], and the share of engines that work [P]."""
    times = np.linspace(0.0, result.rollout_seconds, NUM_POINTS, endpoint=False)
    running, busy = np.zeros(NUM_POINTS), np.zeros(NUM_POINTS)
    engines = result.rollout.engines
    for engine in engines:
        if not engine.segments:
            continue
        starts = np.array([segment.start for segment in engine.segments])
        ends = np.array([segment.end for segment in engine.segments])
        batches = np.array([segment.batch for segment in engine.segments])
        place = np.searchsorted(starts, times, side="right") - 1
        works = (place >= 0) & (times < ends[place])
        busy += works
        running += np.where(works, batches[place], 0)
    return times, running, busy / len(engines)


def _draw_shares(axis: Any, simulated: Sequence[Simulated]) -> None:
    names = [f"{each.nodes} nodes" for each in simulated]
    left = np.zeros(len(simulated))
    for kind, colour in COLOURS.items():
        values = np.array([100 * each.result.gpu_time.kinds()[kind] / each.result.gpu_time.total for each in simulated])
        if values.max() >= 0.05:  # percent: less can't be seen
            axis.barh(names, values, left=left, color=colour, label=kind.replace("_", " "), height=0.6)
        left += values
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("GPU time, % (gap, tail, down, other side: idle)", **STYLE)
    tidy(axis, "x")
