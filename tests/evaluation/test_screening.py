"""What a screen says of a problem, and what moves between two screens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.evaluation.screening import (
    Attempts,
    Screened,
    by_source,
    compare,
    count_decisions,
    histogram,
    screened,
)
from rufus_core.recipe.load import load_recipe
from rufus_core.settings import FilterSettings, RLStage
from rufus_core.types import Message, Problem, Verdict

PROBLEM = Problem.build("arithmetic", "sums", [Message(role="user", content="1 + 1?")], {"answer": "2"})
VERDICTS = {
    "pass": Verdict.binary(True),
    "fail": Verdict.binary(False),
    "aborted": Verdict.aborted("the sandbox is gone"),
    "unscorable": Verdict.unscorable("there are no tests"),
}


@given(st.lists(st.sampled_from(sorted(VERDICTS)), max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_a_problem_stays_if_its_share_of_passes_lies_in_the_window(ends: list[str], low: float, high: float) -> None:
    settings = FilterSettings(samplers=("policy",), num_attempts=8, low_exclusive=low, high_inclusive=high)
    attempts = Attempts.of(VERDICTS[end] for end in ends)
    row = screened(PROBLEM, {"policy": attempts}, settings)
    num_scored = ends.count("pass") + ends.count("fail")
    assert (attempts.num_passed, attempts.num_scored) == (ends.count("pass"), num_scored)
    assert (attempts.num_aborted, attempts.num_unscorable) == (ends.count("aborted"), ends.count("unscorable"))
    if not num_scored:
        assert (row.verdict, row.rate) == ("unscored", None)
        return
    rate = ends.count("pass") / num_scored
    expected = "kept" if low < rate <= high else "too_hard" if rate <= low else "too_easy"
    assert (row.verdict, row.rate) == (expected, rate)


@pytest.mark.parametrize(
    ("num_passed", "verdict"), [(0, "too_hard"), (1, "kept"), (12, "kept"), (13, "too_easy"), (16, "too_easy")]
)
def test_the_learnability_window_at_16_keeps_1_to_12_RRL_D5(num_passed: int, verdict: str) -> None:
    settings = FilterSettings(samplers=("policy",), num_attempts=16, low_exclusive=0.0, high_inclusive=0.8)
    assert screened(PROBLEM, {"policy": _of(num_passed, 16)}, settings).verdict == verdict


@pytest.mark.parametrize(("num_passed", "verdict"), [(0, "kept"), (3, "kept"), (4, "too_easy")])
def test_drop_all_pass_keeps_what_was_never_solved_CRL_D7(num_passed: int, verdict: str) -> None:
    settings = FilterSettings(samplers=("policy",), num_attempts=4, high_inclusive=0.8)
    assert screened(PROBLEM, {"policy": _of(num_passed, 4)}, settings).verdict == verdict


@pytest.mark.parametrize(("num_passed", "verdict"), [(0, "kept"), (6, "kept"), (7, "too_easy"), (8, "too_easy")])
def test_if_drops_7_and_8_of_8_IF_D3(num_passed: int, verdict: str) -> None:
    settings = FilterSettings(samplers=("policy",), num_attempts=8, high_inclusive=0.8)
    assert screened(PROBLEM, {"policy": _of(num_passed, 8)}, settings).verdict == verdict


@pytest.mark.parametrize(
    ("stage", "name", "num_attempts", "kept"),
    [
        ("reasoning_rl", "correctness", 8, range(1, 9)),  # RRL-D4
        ("reasoning_rl", "learnability", 16, range(1, 13)),  # RRL-D5
        ("coding_rl", "solvability", 4, range(1, 5)),  # CRL-D6
        ("coding_rl", "drop_all_pass", 4, range(4)),  # CRL-D7
        ("if_rl", "quality", 4, range(1, 5)),  # IF-D3, IF-D6: the teacher's 0 of 4 is dropped
        ("if_rl", "difficulty", 8, range(7)),  # IF-D3, IF-D6: 7 and 8 of 8 are dropped
    ],
)
def test_the_windows_of_the_production_recipe_RRL_D4_RRL_D5_CRL_D6_CRL_D7_IF_D3_IF_D6(
    stage: str, name: str, num_attempts: int, kept: range
) -> None:
    settings = load_recipe(profile="h200").stages[stage]
    assert isinstance(settings, RLStage)
    screen = settings.problems.filters[name]
    assert screen.num_attempts == num_attempts
    (sampler,) = screen.samplers
    assert (sampler == "policy") == (name in ("learnability", "drop_all_pass", "difficulty"))
    stays = [
        passed
        for passed in range(num_attempts + 1)
        if screened(PROBLEM, {sampler: _of(passed, num_attempts)}, screen).verdict == "kept"
    ]
    assert stays == list(kept)


def test_a_rate_of_exactly_four_fifths_stays_RRL_D5_IF_D3() -> None:
    settings = FilterSettings(samplers=("policy",), num_attempts=5, low_exclusive=0.0, high_inclusive=0.8)
    verdicts = [screened(PROBLEM, {"policy": _of(passed, 5)}, settings).verdict for passed in range(6)]
    assert verdicts == ["too_hard", "kept", "kept", "kept", "kept", "too_easy"]


def test_one_pass_of_either_sampler_is_enough_for_correctness() -> None:
    settings = FilterSettings(samplers=("policy", "openai:t"), num_attempts=4, low_exclusive=0.0)
    both = {"policy": _of(0, 4), "openai:t": _of(1, 4)}
    assert screened(PROBLEM, both, settings).verdict == "kept"
    neither = {"policy": _of(0, 4), "openai:t": Attempts(num_aborted=4)}
    assert screened(PROBLEM, neither, settings).verdict == "too_hard"


def _of(num_passed: int, num_scored: int) -> Attempts:
    return Attempts(num_passed=num_passed, num_scored=num_scored)


def _row(key: str, source: str, num_passed: int, verdict: str) -> Screened:
    attempts = {"policy": _of(num_passed, 4)}
    return Screened.model_validate(
        {"id": key, "family": "arithmetic", "source": source, "attempts": attempts, "verdict": verdict}
    )


OLD = [
    _row("a", "x", 1, "kept"),
    _row("b", "x", 0, "too_hard"),
    _row("c", "y", 4, "too_easy"),
    _row("d", "y", 2, "kept"),
]
NEW = [
    _row("a", "x", 4, "too_easy"),
    _row("b", "x", 1, "kept"),
    _row("c", "y", 4, "too_easy"),
    _row("e", "y", 2, "kept"),
]


def test_a_comparison_tells_what_left_and_what_joined_by_source() -> None:
    found = compare(OLD, NEW)
    assert [(move.id, move.kind, move.old_rate, move.new_rate) for move in found.moves] == [
        ("a", "left", 0.25, 1.0),
        ("b", "joined", 0.0, 0.25),
        ("c", "out", 1.0, 1.0),
    ]
    assert (found.only_old, found.only_new) == (("d",), ("e",))
    sources = found.by_source()
    assert list(sources) == ["x", "y", "all"]
    assert sources["x"] == {"stayed": 0, "left": 1, "joined": 1, "out": 0, "old_rate": 0.125, "new_rate": 0.625}
    assert sources["all"]["out"] == 1


def test_a_screen_compared_with_itself_moves_nothing() -> None:
    assert {move.kind for move in compare(OLD, OLD).moves} == {"stayed", "out"}


def test_counts_by_source_and_a_histogram_with_one_bin_for_each_count() -> None:
    assert count_decisions(OLD) == {"kept": 2, "too_easy": 1, "too_hard": 1}
    assert by_source(OLD) == {"x": {"kept": 1, "too_hard": 1}, "y": {"kept": 1, "too_easy": 1}}
    assert histogram(OLD) == [("0/4", 1), ("1/4", 1), ("2/4", 1), ("3/4", 0), ("4/4", 1)]
    assert histogram([]) == []


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), max_size=30))
def test_every_scored_problem_is_in_one_bin(counts: list[tuple[int, int]]) -> None:
    rows = [
        _row(str(i), "x", 0, "kept").model_copy(update={"attempts": {"policy": _of(min(passed, scored), scored)}})
        for i, (passed, scored) in enumerate(counts)
    ]
    assert sum(count for _, count in histogram(rows)) == len(rows)
