import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.algorithms.advantages import group_advantages

KINDS = ("group_normalised", "mean_only")
rewards_by_group = st.lists(
    st.lists(st.floats(-10, 10, allow_nan=False, width=32), min_size=1, max_size=12), min_size=1, max_size=8
)


def one_group(rewards, kind="group_normalised"):
    return group_advantages(rewards, ["p"] * len(rewards), kind)


def test_one_success_among_sixteen_SA_T2():
    advantages = one_group([1.0] + [0.0] * 15)
    assert advantages[0] == pytest.approx(3.75, abs=2e-5)
    assert advantages[1:] == pytest.approx(-0.25, abs=2e-6)
    assert f"{advantages[0]:.2f}" == "3.75"


def test_eight_successes_among_sixteen_SA_T2():
    advantages = one_group([1.0] * 8 + [0.0] * 8)
    assert advantages == pytest.approx([0.968246] * 8 + [-0.968246] * 8, abs=3e-6)
    assert one_group([1.0] + [0.0] * 15)[0] / advantages[0] == pytest.approx(3.9, abs=0.05)


def test_normalised_advantage_of_a_success_does_not_depend_on_the_gap_SA_T2():
    wide, narrow = one_group([1.0] + [0.0] * 15), one_group([0.5] + [0.4] * 15)
    assert wide == pytest.approx(narrow, abs=2e-4)


def test_mean_only_with_a_gap_of_a_tenth_SA_T2():
    assert one_group([0.1] + [0.0] * 15, "mean_only")[0] == pytest.approx(0.09375, abs=1e-12)


def test_three_left_after_an_abort_CA_R3():
    assert one_group([1.0, 0.0, 0.0], "mean_only") == pytest.approx([2 / 3, -1 / 3, -1 / 3], abs=1e-12)


def test_seven_times_the_same_and_one_zero():
    """k = 7 of G = 8: sqrt((G - k)(G - 1) / (k G)) = 0.353553, and the zero gets minus seven times that."""
    assert one_group([0.95] * 7 + [0.0]) == pytest.approx([0.353553] * 7 + [-2.474874], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rewards",
    [
        [0.95] * 7,
        [0.1 + 0.2, 0.3, 0.3],
        list(np.float32(0.95) + np.float32(6e-8) * np.arange(3, dtype=np.float32)),
        [-7.3] * 5,
        [1e6 / 3] * 3,
    ],
)
def test_equal_rewards_give_exactly_zero(rewards, kind):
    assert (one_group(rewards, kind) == 0.0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_gives_zero_beside_a_full_group(kind):
    advantages = group_advantages([1.0, 1.0, 0.0], ["alone", "pair", "pair"], kind)
    assert advantages[0] == 0.0
    assert advantages[1] > 0 > advantages[2]


def test_one_token_of_length_penalty_is_a_difference():
    """The smallest honest difference, 0.2 / 131,072 of a reward of 1, is not taken for rounding."""
    assert one_group([1.0, 1.0 - 0.2 / 131_072])[0] > 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_refused(bad):
    with pytest.raises(ValueError, match="not finite"):
        one_group([0.0, bad])


def test_rewards_without_an_id_are_refused():
    with pytest.raises(ValueError, match="group ids"):
        group_advantages([0.0, 1.0], ["p"])


def test_no_rewards_give_no_advantages():
    assert group_advantages([], []).shape == (0,)


@given(groups=rewards_by_group, seed=st.integers(0, 999), kind=st.sampled_from(KINDS))
def test_membership_is_by_id_and_never_by_position(groups, seed, kind):
    rows = [(reward, f"p{g}") for g, rewards in enumerate(groups) for reward in rewards]
    expected = np.concatenate([one_group(rewards, kind) for rewards in groups])
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    shuffled = group_advantages([rows[i][0] for i in order], [rows[i][1] for i in order], kind)
    assert shuffled.tolist() == expected[order].tolist()


@given(groups=rewards_by_group, kind=st.sampled_from(KINDS))
def test_advantages_are_finite_ordered_and_sum_to_zero_in_each_group(groups, kind):
    for rewards in groups:
        advantages = one_group(rewards, kind)
        assert np.isfinite(advantages).all()
        assert advantages.sum() == pytest.approx(0.0, abs=1e-6)
        assert (np.diff(advantages[np.argsort(rewards, kind="stable")]) >= 0).all()


@given(groups=rewards_by_group)
def test_normalised_groups_have_unit_std_unless_they_are_flat(groups):
    for rewards in groups:
        if np.ptp(rewards) > 0.1:
            assert one_group(rewards).std(ddof=1) == pytest.approx(1.0, abs=1e-4)
