"""The curves of one training as a picture: a panel for each thing to watch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rufus_core.evaluation.figures import BLUE, GREY, ORANGE, STYLE, Curve, read_metrics, smooth, tidy

GREEN = "#009E73"
COLOURS = (BLUE, ORANGE, GREEN)
# Title of a panel: its metrics with their labels. A panel is drawn if one of them was logged.
PANELS: Mapping[str, Mapping[str, str]] = {
    "reward": {"reward": "mean score", "pass_rate": "pass rate"},
    "reward on the diagnostic's prompts": {"diagnostic/reward": "mean score"},
    "loss": {"loss": "loss"},
    "response length, tokens": {"response_tokens": "all", "final_response_tokens": "after thinking"},
    "truncation ratio": {"truncation_ratio": "share of responses"},
    "entropy, nats a token": {"entropy": "entropy"},
    "KL, nats a token": {"policy_kl": "to the rollout's policy", "ref_kl": "to the reference"},
    "importance ratio": {"ratio": "mean ratio", "tis_weight": "truncated weight"},
    "log-prob gap to the rollout": {"logprob_gap": "mean"},
    "routing agreement": {"routing_agreement": "share of experts"},
    "clipped share of tokens": {"clip_fraction": "clip fraction"},
    "gradient norm": {"grad_norm": "before clipping"},
    "learning rate": {"lr": "learning rate"},
    "rollouts": {"rollouts/trained": "trained", "rollouts/filtered": "filtered", "rollouts/aborted": "aborted"},
    "tool calls a rollout": {"tool_calls": "mean"},
    "supervised tokens a step": {"tokens": "tokens"},
}
EXACT = "learning rate"  # not measured: nothing to smooth
NUM_COLUMNS = 4
LEAST_SPAN = 0.1  # of an axis, as a share of its largest value


def draw_curves(metrics: Path, out: Path, forks: Sequence[int] = ()) -> None:
    """Draw a training's metrics file, one JSON object a line with `step` and `metrics`.

    Equal numbers give equal bytes. `forks` are steps at which settings changed; a dotted line marks each.
    """
    curves = read_metrics(metrics)
    panels = [(title, names) for title, names in PANELS.items() if any(name in curves for name in names)]
    num_rows = max(1, math.ceil(len(panels) / NUM_COLUMNS))
    with matplotlib.style.context("default", after_reset=True):  # whatever the user's matplotlibrc says
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)  # inches
        figure = Figure(figsize=(14, 0.3 + 2.5 * num_rows), layout=layout)
        axes = figure.subplots(num_rows, NUM_COLUMNS, squeeze=False).ravel()
        for axis, (title, names) in zip(axes, panels, strict=False):
            _draw_panel(axis, title, {label: curves[name] for name, label in names.items() if name in curves}, forks)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        figure.savefig(out, dpi=110, metadata={"Software": None})


def _draw_panel(axis: Any, title: str, curves: Mapping[str, Curve], forks: Sequence[int]) -> None:
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axis.set_xlabel("step", **STYLE)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    tidy(axis, "y")
    for fork in forks:
        axis.axvline(fork, color=GREY, linewidth=1, linestyle=":")
    for colour, (label, (steps, values)) in zip(COLOURS, curves.items(), strict=False):
        axis.plot(steps, values, color=colour, alpha=0.25, linewidth=0.8)
        mark = "o" if len(values) == 1 else ""
        window = 1 if title == EXACT else max(1, len(values) // 10)
        axis.plot(steps, smooth(values, window), color=colour, linewidth=1.7, marker=mark, label=label)
    _calm(axis, [value for _, values in curves.values() for value in values if math.isfinite(value)])
    if len(curves) > 1:
        axis.legend(framealpha=0.8, edgecolor="none", fontsize=8)


def _calm(axis: Any, values: Sequence[float]) -> None:
    """Let a curve that hardly moves look flat, and write numbers out."""
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=5))
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high == 0.0:
        axis.set_ylim(-0.05, 1.0)
    elif high - low < (least := LEAST_SPAN * max(abs(low), abs(high))):
        axis.set_ylim((low + high - least) / 2, (low + high + least) / 2)
