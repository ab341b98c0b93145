"""A training's picture of its curves."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl

from rufus_core.evaluation.curves import draw_curves

PNG = b"\x89PNG\r\n\x1a\n"
RL = {"reward": 0.5, "pass_rate": 0.5, "entropy": 1.0, "policy_kl": 0.0, "ratio": 1.0, "rollouts/trained": 8.0}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [json.dumps({"step": step, "metrics": metrics}) for step, metrics in enumerate(rows, start=1)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def chunks(png: bytes) -> Iterator[str]:
    place = len(PNG)
    while place < len(png):
        (size,) = struct.unpack(">I", png[place : place + 4])
        yield png[place + 4 : place + 8].decode()
        place += size + 12


def height(png: bytes) -> int:
    return int(struct.unpack(">I", png[20:24])[0])


def test_equal_numbers_give_equal_bytes_whatever_the_user_set(tmp_path: Path) -> None:
    metrics = write(tmp_path / "m.jsonl", [{**RL, "reward": step / 9} for step in range(9)])
    draw_curves(metrics, tmp_path / "one.png", [3])
    with mpl.rc_context({"axes.facecolor": "black", "font.size": 20}):
        draw_curves(metrics, tmp_path / "other.png", [3])
    png = (tmp_path / "one.png").read_bytes()
    assert png.startswith(PNG)
    assert png == (tmp_path / "other.png").read_bytes()
    assert set(chunks(png)) == {"IHDR", "pHYs", "IDAT", "IEND"}  # no software, no time
    draw_curves(metrics, tmp_path / "without fork.png")
    assert png != (tmp_path / "without fork.png").read_bytes()


def test_what_was_not_logged_has_no_panel(tmp_path: Path) -> None:
    sft = [{"loss": 2.0 / step, "lr": 1e-3, "grad_norm": 1.0, "tokens": 99.0} for step in range(1, 5)]
    heights = []
    for name, rows in (("sft", sft), ("rl", [RL, RL])):
        draw_curves(write(tmp_path / f"{name}.jsonl", rows), tmp_path / f"{name}.png")
        heights.append(height((tmp_path / f"{name}.png").read_bytes()))
    assert heights[0] < heights[1]  # four panels are one row, five are two


def test_gaps_nans_and_a_single_step_are_drawn(tmp_path: Path) -> None:
    gaps = write(tmp_path / "gaps.jsonl", [RL, {"reward": "NaN"}, {**RL, "entropy": "Infinity"}])
    for path in (gaps, write(tmp_path / "one.jsonl", [RL]), write(tmp_path / "none.jsonl", [])):
        draw_curves(path, tmp_path / "out.png")
        assert (tmp_path / "out.png").read_bytes().startswith(PNG)
