"""What is told of a stage: short steps, skipped updates, truncated responses (SLM-08, CRL-T8)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rufus_core.training.monitor import Monitor, remarks, stage_totals

Row = tuple[int, dict[str, float]]


def row(
    step: int, truncated: float = 0.0, short: int = 0, skipped: int = 0, trained: int = 8, filtered: int = 4
) -> Row:
    counts = {"issued": trained + filtered, "trained": trained, "filtered": filtered, "aborted": 0}
    counts |= {"rounds": 2, "short_groups": short}
    metrics = {f"rollouts/{name}": float(count) for name, count in counts.items()}
    return step, metrics | {"truncation_ratio": truncated, "skipped_updates": float(skipped)}


def warned(rows: Sequence[Row]) -> list[tuple[int, str]]:
    monitor = Monitor()
    return [(step, warning) for step, metrics in rows for warning in monitor.warnings(step, metrics)]


def test_a_short_step_is_told_once_and_summed_up() -> None:
    rows = [row(1), row(2, short=3), row(3, short=1)]
    assert warned(rows) == [(2, "step 2 trains on what was accepted: 3 groups were missing after round 2")]
    assert list(remarks(stage_totals(rows), 3)) == ["2 of 3 steps were short of groups, of 4 in all"]


def test_a_step_without_a_gradient_is_told() -> None:
    rows = [row(1, skipped=2), row(2)]
    assert warned(rows) == [(1, "step 1 skipped 2 optimizer steps, for nothing carried a gradient")]
    assert list(remarks(stage_totals(rows), 2)) == ["1 of 2 steps skipped 2 optimizer steps in all"]


def test_more_than_a_tenth_truncated_five_times_in_a_row_is_told_CRL_T8() -> None:
    ratios = [0.2, 0.2, 0.2, 0.2, 0.1, 0.11, 0.11, 0.11, 0.11, 0.5, 0.9]
    rows = [row(step, truncated=ratio) for step, ratio in enumerate(ratios, start=1)]
    ((step, warning),) = warned(rows)
    assert step == 10
    assert warning.startswith("step 10 is the 5th in a row with over 10% of the responses truncated (50%)")
    assert list(remarks(stage_totals(rows), 11)) == ["10 of 11 steps had over 10% of their responses truncated"]


def test_a_quiet_stage_says_nothing() -> None:
    rows = [row(step, truncated=0.1) for step in range(1, 30)]
    assert warned(rows) == []
    assert list(remarks(stage_totals(rows), 29)) == []


def test_supervised_fine_tuning_has_no_rollouts_to_count() -> None:
    rows = [(1, {"loss": 2.0, "skipped_updates": 0.0}), (2, {"loss": 1.0, "skipped_updates": 1.0})]
    assert [step for step, _ in warned(rows)] == [2]
    assert stage_totals(rows) == {"total/skipped_updates": 1, "total/steps_that_skipped": 1}


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 3)), min_size=1, max_size=30))
def test_a_stage_conserves_rollouts_as_its_steps_do(counts: list[tuple[int, int, int]]) -> None:
    rows = [
        row(step, trained=trained, filtered=filtered, short=short)
        for step, (trained, filtered, short) in enumerate(counts, start=1)
    ]
    totals = stage_totals(rows)
    of = {name: totals[f"total/rollouts/{name}"] for name in ("issued", "trained", "filtered", "aborted")}
    assert of["issued"] == of["trained"] + of["filtered"] + of["aborted"] == sum(t + f for t, f, _ in counts)
    assert totals["total/steps_short"] == sum(short > 0 for *_, short in counts)
