import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.algorithms.schedules import learning_rate
from rufus_core.settings import OptimizerSettings

SFT = OptimizerSettings(lr_peak=5e-5, lr_min=5e-6, schedule="cosine", warmup_steps=100)


def test_peak_after_warmup_and_minimum_at_the_end_SFT_04():
    assert learning_rate(100, 7112, SFT) == 5e-5
    assert learning_rate(7112, 7112, SFT) == 5e-6


def test_warmup_is_linear_and_never_zero_SFT_04():
    assert learning_rate(1, 7112, SFT) == pytest.approx(5e-7)
    assert learning_rate(50, 7112, SFT) == pytest.approx(2.5e-5)


def test_halfway_down_the_cosine_is_the_middle_of_both_rates():
    assert learning_rate(100 + 3506, 7112, SFT) == pytest.approx((5e-5 + 5e-6) / 2)


def test_constant_needs_no_end_RRL_T2():
    constant = OptimizerSettings(lr_peak=1e-6)
    assert [learning_rate(step, None, constant) for step in (1, 1000)] == [1e-6, 1e-6]


def test_beyond_the_end_it_stays_at_the_minimum():
    assert learning_rate(9000, 7112, SFT) == 5e-6


def test_a_run_shorter_than_its_warmup_only_warms_up():
    assert learning_rate(20, 20, SFT) == pytest.approx(1e-5)


def test_steps_start_at_one():
    with pytest.raises(ValueError, match="from 1"):
        learning_rate(0, 7112, SFT)


def test_a_cosine_needs_an_end():
    with pytest.raises(ValueError, match="total"):
        learning_rate(200, None, SFT)


@given(total=st.integers(1, 500), warmup=st.integers(0, 100))
def test_rises_then_falls_and_stays_between_zero_and_the_peak(total, warmup):
    settings = SFT.model_copy(update={"warmup_steps": warmup})
    rates = [learning_rate(step, total, settings) for step in range(1, total + 1)]
    top = max(1, min(warmup, total))
    assert rates[:top] == sorted(rates[:top])
    assert rates[top - 1 :] == sorted(rates[top - 1 :], reverse=True)
    assert all(0 < rate <= 5e-5 for rate in rates)
