import csv
import io
import json

import pytest
from rich.console import Console

from rufus_core.evaluation.render import abbreviate, csv_table, json_table, markdown_table, terminal_table
from rufus_core.evaluation.scores import Scores
from rufus_core.evaluation.table import Checkpoint, benchmark_names, stage_table

STAGES = ["sft", "reasoning_rl", "coding_rl", "if_rl", "general_agent", "coding_agent", "search_agent", "rlhf"]
CHAIN = [
    Checkpoint(stage="base", checkpoint="base", digest="d0"),
    *(
        Checkpoint(stage=stage, checkpoint=f"stages/{stage}/checkpoint", digest=f"d{i}", step=10 * i)
        for i, stage in enumerate(STAGES, 1)
    ),
]


def measured(benchmark, index, passed, total=40, protocol=None, lost=0):
    """The first `passed` of `total` problems are solved; `lost` further ones have no verdict."""
    link = CHAIN[index]
    samples = {f"p{i}": (float(i < passed),) for i in range(total)} | {f"lost{i}": (None,) for i in range(lost)}
    return Scores(
        benchmark=benchmark,
        stage=link.stage,
        checkpoint=link.checkpoint,
        digest=link.digest,
        step=link.step,
        protocol=protocol or {"samples": 1},
        per_problem=samples,
    )


def shown(rows, width=100):
    console = Console(width=width, file=io.StringIO())
    console.print(terminal_table(rows, width))
    return console.file.getvalue()


def full_table():
    names = [f"{stage}_heldout" for stage in STAGES]
    scores = [measured(name, i, passed=40 if i > j else 3) for i in range(9) for j, name in enumerate(names)]
    return stage_table(CHAIN, scores)


def test_each_row_is_compared_with_the_one_above_PIPE_07():
    rows = stage_table(CHAIN[:3], [measured("gpqa", 0, 4), measured("gpqa", 1, 20), measured("gpqa", 2, 20)])
    assert [row.stage for row in rows] == ["base", "sft", "reasoning_rl"]
    base, sft, reasoning = (row.metrics["gpqa"] for row in rows)
    assert (base.mean, base.delta, base.parent_mean) == (0.1, None, None)
    assert (sft.mean, sft.parent_mean, sft.delta) == (0.5, 0.1, pytest.approx(0.4))
    assert sft.significant
    assert (reasoning.delta, reasoning.ci95, reasoning.significant) == (0.0, (0.0, 0.0), False)


def test_what_was_not_measured_is_missing_and_is_not_bridged():
    """Coding RL is not compared with its grandparent."""
    rows = stage_table(CHAIN[:4], [measured("gpqa", 1, 4), measured("gpqa", 3, 20)])
    assert [sorted(row.metrics) for row in rows] == [[], ["gpqa"], [], ["gpqa"]]
    assert rows[3].metrics["gpqa"].delta is None


def test_a_pair_never_mixes_protocols_EVAL_07():
    other = {"samples": 1, "judge": "another"}
    rows = stage_table(CHAIN[:2], [measured("gpqa", 0, 4), measured("gpqa", 1, 20, protocol=other)])
    cell = rows[1].metrics["gpqa"]
    assert (cell.mean, cell.delta, cell.parent_mean, cell.other_protocol) == (0.5, None, None, True)


def test_the_parent_is_taken_under_the_childs_protocol_where_it_has_both_EVAL_07():
    other = {"samples": 1, "judge": "another"}
    rows = stage_table(
        CHAIN[:2],
        [measured("gpqa", 0, 8, protocol=other), measured("gpqa", 0, 4), measured("gpqa", 1, 20, protocol=other)],
    )
    assert rows[0].metrics["gpqa"].mean == 0.1
    assert (rows[1].metrics["gpqa"].parent_mean, rows[1].metrics["gpqa"].delta) == (0.2, pytest.approx(0.3))


def test_the_last_measurement_counts():
    rows = stage_table(CHAIN[:1], [measured("gpqa", 0, 4), measured("gpqa", 0, 20)])
    assert rows[0].metrics["gpqa"].mean == 0.5


def test_scores_of_other_checkpoints_are_left_out():
    assert stage_table(CHAIN[:1], [measured("gpqa", 5, 4)])[0].metrics == {}


def test_lost_samples_are_counted_and_are_no_zeros():
    rows = stage_table(CHAIN[:1], [measured("gpqa", 0, 20, lost=3)])
    cell = rows[0].metrics["gpqa"]
    assert (cell.mean, cell.n, cell.num_lost_samples) == (0.5, 40, 3)
    assert "50.0!" in shown(rows)
    assert "lost to the infrastructure" in shown(rows)


def test_eight_benchmarks_fit_a_hundred_columns():
    text = shown(full_table())
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert text.count("+92.5*") == 8
    assert "100.0" in text


@pytest.mark.parametrize("width", [100, 60, 40, 25, 18])
def test_a_narrow_terminal_cuts_no_number(width):
    text = shown(full_table(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert text.count("+92.5*") == 8
    assert text.count("100.0") == 36  # each of 8 benchmarks from its stage on


def test_few_benchmarks_keep_a_cell_on_one_line():
    rows = stage_table(CHAIN[:2], [measured("gpqa", 0, 4), measured("gpqa", 1, 20)])
    assert "50.0 +40.0*" in shown(rows)
    assert "excludes 0" in shown(rows)


def test_an_unchanged_score_has_no_star():
    text = shown(stage_table(CHAIN[:2], [measured("gpqa", 0, 4), measured("gpqa", 1, 4)]))
    assert "10.0 +0.0" in text
    assert "+0.0*" not in text


def test_another_protocol_is_marked():
    rows = stage_table(CHAIN[:2], [measured("gpqa", 0, 4), measured("gpqa", 1, 20, protocol={"samples": 2})])
    assert "50.0~" in shown(rows)
    assert "another protocol" in shown(rows)
    assert "50.0~" in markdown_table(rows)


def test_abbreviations_fit_and_differ():
    names = ["livecodebench_v6", "terminal_bench_2_0", "terminal_bench_2_1", "ifeval", "a" * 30, "a" * 31]
    short = abbreviate(names, 10)
    assert all(len(name) <= 10 for name in short)
    assert len(set(short)) == len(names)
    assert short[3] == "ifeval"


def test_a_last_word_that_all_share_is_dropped():
    assert abbreviate(["sft_heldout", "if_rl_heldout"], 10) == ["sft", "if_rl"]
    assert abbreviate(["sft_heldout"], 12) == ["sft_heldout"]


def test_markdown_names_every_checkpoint_and_number():
    lines = markdown_table(full_table()).splitlines()
    assert lines[0].count("|") == len(STAGES) + 4
    assert all(line.count("|") == lines[0].count("|") for line in lines[:11])
    assert "100.0 ± 0.0 (+92.5\\*)" in lines[3]
    assert "stages/sft/checkpoint `d1`" in lines[3]


def test_csv_has_one_line_for_each_number():
    rows = list(csv.DictReader(io.StringIO(csv_table(full_table()))))
    assert len(rows) == 9 * 8
    first = next(row for row in rows if row["stage"] == "sft" and row["benchmark"] == "sft_heldout")
    assert (first["step"], float(first["mean"]), float(first["delta"])) == ("10", 1.0, 0.925)
    assert float(first["ci95_low"]) <= 0.925 <= float(first["ci95_high"])
    assert rows[0]["delta"] == rows[0]["ci95_low"] == ""


def test_json_has_the_documented_shape():
    rows = json.loads(json_table(full_table()))
    assert list(rows[1]) == ["stage", "checkpoint", "digest", "step", "metrics"]
    assert {"mean", "stderr", "n", "parent_mean", "delta", "ci95"} <= set(rows[1]["metrics"]["sft_heldout"])
    assert benchmark_names(full_table()) == [f"{stage}_heldout" for stage in STAGES]
