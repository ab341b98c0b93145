import json

import numpy as np
import pytest

from rufus_core.evaluation.figures import learning_curves, read_metrics, smooth, stage_scores
from rufus_core.evaluation.table import Cell, StageRow

PNG = b"\x89PNG\r\n\x1a\n"


def write(path, lines):
    path.write_text("".join(json.dumps({"step": step, "metrics": metrics}) + "\n" for step, metrics in lines))
    return path


def test_a_step_that_a_resume_repeats_counts_once_as_last_written(tmp_path):
    path = write(tmp_path / "m.jsonl", [(1, {"reward": 0.1}), (2, {"reward": 0.2}), (2, {"reward": 0.5})])
    with path.open("a") as file:
        file.write('{"step": 3, "metr')
    steps, values = read_metrics(path)["reward"]
    assert (steps.tolist(), values.tolist()) == ([1, 2], [0.1, 0.5])


def test_a_metric_may_be_missing_from_a_step(tmp_path):
    path = write(tmp_path / "m.jsonl", [(2, {"reward": 0.2, "loss": 3.0}), (1, {"reward": 0.1})])
    curves = read_metrics(path)
    assert curves["reward"][0].tolist() == [1, 2]
    assert curves["loss"][0].tolist() == [2]


def test_a_nan_that_a_job_reported_is_a_gap_in_the_curve(tmp_path):
    path = write(tmp_path / "m.jsonl", [(1, {"loss": 3.0}), (2, {"loss": "NaN"}), (3, {"loss": "Infinity"})])
    np.testing.assert_equal(read_metrics(path)["loss"][1], [3.0, np.nan, np.inf])


def test_smoothing_keeps_a_constant_and_the_middle_of_a_line():
    assert smooth(np.full(9, 2.5), 5).tolist() == pytest.approx([2.5] * 9)
    assert smooth(np.arange(9.0), 5)[2:-2].tolist() == pytest.approx([2, 3, 4, 5, 6])
    assert smooth(np.array([1.0, 4.0]), 1).tolist() == [1.0, 4.0]


def test_a_nan_leaves_a_gap_and_does_not_spread():
    smoothed = smooth(np.array([1.0, np.nan, 1.0, 1.0, 1.0]), 3)
    assert np.isnan(smoothed).tolist() == [True, True, True, False, False]


def test_curves_of_an_sft_and_an_rl_stage_become_one_image(tmp_path):
    sft = write(tmp_path / "sft.jsonl", [(s, {"loss": 1.0 / s}) for s in range(1, 30)])
    rl = write(tmp_path / "rl.jsonl", [(s, {"reward": s / 30, "response_tokens": 9.0}) for s in range(1, 4)])
    empty = write(tmp_path / "empty.jsonl", [])
    learning_curves({"sft": sft, "reasoning_rl": rl, "coding_rl": empty}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)


def test_stage_scores_become_one_image(tmp_path):
    cell = Cell(mean=0.5, stderr=0.02, n=9, parent_mean=0.4, parent_stderr=None, delta=0.1, ci95=(0.05, 0.15))
    rows = [
        StageRow(stage="base", checkpoint="base", digest="d0", metrics={"math": Cell(mean=0.4, stderr=0.02, n=9)}),
        StageRow(stage="sft", checkpoint="c", digest="d1", step=3, metrics={"math": cell}),
    ]
    stage_scores(rows, {"sft": ["math", "not_measured"], "base": ["math"]}, tmp_path / "scores.png")
    assert (tmp_path / "scores.png").read_bytes().startswith(PNG)
    stage_scores([], {}, tmp_path / "none.png")
    assert (tmp_path / "none.png").read_bytes().startswith(PNG)
