import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.algorithms.shaping import shortest_correct_penalty

rollouts = st.lists(
    st.tuples(st.integers(1, 30_000), st.booleans(), st.booleans(), st.sampled_from("abc")), min_size=1, max_size=20
)


def penalties(lengths, correct, truncated=None, ids=None, max_tokens=1100, cap=0.2):
    size = len(lengths)
    return shortest_correct_penalty(
        lengths, correct, truncated or [False] * size, ids or ["p"] * size, max_tokens=max_tokens, cap=cap
    )


def test_linear_from_the_shortest_correct_to_the_cap_RRL_R2():
    """L* = 100, L_max = 1100: nothing at 100, half the cap at 600, the cap at 1100; the wrong ones are left alone."""
    assert penalties([100, 600, 1100, 50, 900], [1, 1, 1, 0, 0]).tolist() == pytest.approx([0, 0.1, 0.2, 0, 0])


def test_nothing_in_a_group_without_a_correct_rollout_RRL_R2():
    assert penalties([100, 1100], [0, 0]).tolist() == [0, 0]


def test_each_group_has_its_own_baseline():
    shaped = penalties([100, 600, 600, 1100], [1, 1, 1, 1], ids=["a", "a", "b", "b"])
    assert shaped.tolist() == pytest.approx([0, 0.1, 0, 0.2])


def test_a_truncated_rollout_is_neither_penalised_nor_the_baseline():
    assert penalties([100, 600, 1100], [1, 1, 1], [True, False, False]).tolist() == pytest.approx([0, 0, 0.2])


def test_when_the_shortest_correct_has_the_maximum_length():
    assert penalties([1100, 1100], [1, 1]).tolist() == [0, 0]


@pytest.mark.parametrize("cap", [1.0, 1.5, -0.1])
def test_a_cap_that_could_reverse_the_order_is_refused(cap):
    with pytest.raises(ValueError, match="cap"):
        penalties([100], [1], cap=cap)


@given(rows=rollouts, cap=st.floats(0, 0.999), seed=st.integers(0, 99))
def test_right_stays_above_wrong_and_order_does_not_matter(rows, cap, seed):
    def shaped(rows):
        lengths, correct, truncated, ids = zip(*rows, strict=True)
        found = shortest_correct_penalty(lengths, correct, truncated, ids, max_tokens=30_000, cap=cap)
        assert (found >= 0).all()
        return np.asarray(correct, dtype=float) - found

    rewards = shaped(rows)
    for reward, (_, correct, _, _) in zip(rewards, rows, strict=True):
        assert (reward > 0) if correct else (reward == 0)
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    assert shaped([rows[i] for i in order]).tolist() == rewards[order].tolist()
