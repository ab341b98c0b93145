import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_core.errors import DataError
from rufus_core.evaluation.scores import Scores
from rufus_core.evaluation.statistics import compare, paired_difference, pass_at_1, pass_at_k

samples = st.lists(st.sampled_from([0.0, 1.0, None]), max_size=6)
benchmarks = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), samples, max_size=12)


def scores(per_problem, protocol=None, benchmark="gpqa", checkpoint="sft"):
    return Scores(
        benchmark=benchmark,
        stage="sft",
        checkpoint=checkpoint,
        digest="d",
        protocol=protocol or {"temperature": 1.0},
        per_problem=per_problem,
    )


def test_mean_and_error_are_clustered_by_problem_EVAL_01():
    """Problem means 1, 0.5, 0: std (ddof=1) 0.5 over sqrt(3) problems, though there are six samples."""
    estimate = pass_at_1({"a": [1, 1], "b": [1, 0], "c": [0, 0]})
    assert estimate.mean == 0.5
    assert estimate.stderr == pytest.approx(0.5 / math.sqrt(3))
    assert estimate.n == 3


def test_repeating_every_sample_does_not_shrink_the_error():
    once = pass_at_1({"a": [1], "b": [0], "c": [1]})
    assert pass_at_1({"a": [1] * 8, "b": [0] * 8, "c": [1] * 8}) == once


def test_a_sample_lost_to_the_infrastructure_is_no_zero():
    estimate = pass_at_1({"a": [1, None, None], "b": [0, 0, 0], "c": [None]})
    assert (estimate.mean, estimate.n) == (0.5, 2)
    assert (estimate.num_lost_samples, estimate.num_undefined_problems) == (3, 1)


def test_too_few_problems_have_no_mean_or_no_error():
    assert pass_at_1({}).mean is None
    assert pass_at_1({"a": [1, 0]}).mean == 0.5
    assert pass_at_1({"a": [1, 0]}).stderr is None


@given(n=st.integers(1, 8), data=st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(n, data):
    passes = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n))
    k = data.draw(st.integers(1, n))
    subsets = [max(subset) for subset in combinations(passes, k)]
    assert pass_at_k({"p": passes}, k).mean == pytest.approx(sum(subsets) / len(subsets))


def test_pass_at_k_with_fewer_samples_is_undefined_and_not_one():
    assert pass_at_k({"a": [1, 1]}, 4).mean is None
    mixed = pass_at_k({"a": [1, 1], "b": [0, 0, 0, 0]}, 4)
    assert (mixed.mean, mixed.n, mixed.num_undefined_problems) == (0.0, 1, 1)


def test_a_lost_sample_can_make_pass_at_k_undefined():
    assert pass_at_k({"a": [1, 1, 1, None]}, 4).mean is None


def test_pass_at_k_needs_passes_and_fails():
    with pytest.raises(ValueError, match="0 or 1"):
        pass_at_k({"a": [0.5, 1.0]}, 1)
    with pytest.raises(ValueError, match="at least 1"):
        pass_at_k({"a": [1.0]}, 0)


@given(benchmarks)
def test_pass_at_1_agrees_with_pass_at_k_of_one(per_problem):
    one, k = pass_at_1(per_problem), pass_at_k(per_problem, 1)
    assert one.n == k.n
    assert one.mean == (None if k.mean is None else pytest.approx(k.mean))


def test_the_difference_is_paired_by_problem():
    """Problems differ widely, the child is better by 0.25 on each: the interval is a point."""
    parent = {f"p{i}": [i / 40] for i in range(30)}
    child = {key: [value + 0.25] for key, (value,) in parent.items()}
    difference = paired_difference(parent, child)
    assert difference.delta == pytest.approx(0.25)
    assert difference.ci95 == pytest.approx((0.25, 0.25))


def test_the_interval_is_near_that_of_the_normal_distribution():
    rng = np.random.default_rng(3)
    gains = rng.normal(0.05, 0.3, size=400)
    difference = paired_difference({str(i): [0.0] for i in range(400)}, {str(i): [g] for i, g in enumerate(gains)})
    half = 1.96 * gains.std(ddof=1) / 20
    assert difference.delta == pytest.approx(gains.mean())
    assert difference.ci95 == pytest.approx((gains.mean() - half, gains.mean() + half), abs=0.1 * half)


def test_the_interval_depends_on_the_scores_alone():
    """The seed is fixed and problems are taken in order of id, whatever PYTHONHASHSEED is."""
    parent = {f"problem {i}": [0.0] for i in range(50)}
    child = {f"problem {i}": [i * i / 2500] for i in range(50)}
    assert paired_difference(parent, child).ci95 == pytest.approx((0.2444542, 0.406857), abs=1e-9)


def test_only_problems_that_both_scored_count():
    difference = paired_difference(
        {"a": [0], "b": [0], "lost": [None], "old": [1]}, {"b": [1], "a": [1], "lost": [1], "new": [0]}
    )
    assert (difference.delta, difference.n) == (1.0, 2)


def test_nothing_in_common_has_no_difference():
    assert paired_difference({"a": [1]}, {"b": [1]}).delta is None
    assert paired_difference({"a": [0]}, {"a": [1]}).ci95 is None


def test_a_bound_of_zero_is_exactly_zero():
    """Means such as 0.1 + 0.2 and 0.3 differ by a residue, which is no improvement."""
    parent = {str(i): [0.3] for i in range(20)}
    child = {str(i): [0.1 + 0.2] for i in range(20)}
    assert paired_difference(parent, child).ci95 == (0.0, 0.0)


@settings(max_examples=25, deadline=None)
@given(parent=benchmarks, child=benchmarks)
def test_the_difference_is_antisymmetric_and_ignores_the_order_of_problems(parent, child):
    forward, backward = paired_difference(parent, child), paired_difference(child, parent)
    reordered = paired_difference(dict(reversed(parent.items())), dict(reversed(child.items())))
    assert forward == reordered
    if forward.delta is not None:
        assert backward.delta == pytest.approx(-forward.delta)
    if forward.ci95 is not None:
        assert backward.ci95 == pytest.approx((-forward.ci95[1], -forward.ci95[0]), abs=1e-9)
        assert forward.ci95[0] - 1e-9 <= forward.delta <= forward.ci95[1] + 1e-9


@pytest.mark.parametrize("other", [{"temperature": 0.6}, {"temperature": 1.0, "judge": "x"}])
def test_unequal_protocols_are_not_subtracted_EVAL_07(other):
    with pytest.raises(DataError, match="different protocols") as raised:
        compare(scores({"a": [0], "b": [1]}), scores({"a": [1], "b": [1]}, other, checkpoint="coding_rl"))
    assert "coding_rl" in str(raised.value)


def test_different_benchmarks_are_not_subtracted():
    with pytest.raises(DataError, match="gpqa"):
        compare(scores({"a": [0]}), scores({"a": [1]}, benchmark="ifeval"))


def test_equal_protocols_are_subtracted():
    assert compare(scores({"a": [0], "b": [1]}), scores({"a": [1], "b": [1]})).delta == 0.5
