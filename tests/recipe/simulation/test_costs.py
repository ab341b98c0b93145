"""What decode steps cost: the closed form against the sum that it stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.recipe.simulation.costs import MeasuredCost, RooflineCost, decode_seconds, steps_until
from tests.recipe.simulation.models import costs

ROOFLINE = RooflineCost(
    dense_bytes=6e9,
    expert_bytes=100e9,
    num_experts=128,
    experts_per_token=8,
    flops_per_token=24e9,
    kv_bytes_per_token=188416,
    bytes_per_second=20e12,
    decode_flops_per_second=4e15,
    prefill_flops_per_second=4e15,
    overhead_seconds=0.008,
)


@given(costs, st.integers(0, 60), st.integers(1, 300), st.integers(0, 10_000))
def test_many_steps_cost_what_each_costs_with_the_context_it_has(
    cost: MeasuredCost, steps: int, batch: int, context: int
) -> None:
    each = [cost.batch_seconds(batch) + cost.context_seconds * (context + batch * k) for k in range(steps)]
    assert decode_seconds(cost, steps, batch, context) == pytest.approx(sum(each))


@given(costs, st.floats(0, 5), st.integers(1, 200), st.integers(1, 300), st.integers(0, 10_000))
def test_the_fewest_steps_that_take_so_long(
    cost: MeasuredCost, seconds: float, most: int, batch: int, context: int
) -> None:
    steps = steps_until(cost, seconds, most, batch, context)
    assert steps == most or decode_seconds(cost, steps, batch, context) >= seconds
    assert steps == 0 or decode_seconds(cost, steps - 1, batch, context) < seconds


def test_one_sequence_reads_its_own_experts_alone_and_many_read_all() -> None:
    one = (6e9 + 100e9 * 8 / 128) / 20e12
    assert ROOFLINE.batch_seconds(1) == pytest.approx(one + 0.008)
    assert ROOFLINE.batch_seconds(400) == pytest.approx((6e9 + 100e9) / 20e12 + 0.008, rel=1e-6)


def test_a_large_batch_is_bound_by_its_products() -> None:
    assert ROOFLINE.batch_seconds(4000) == pytest.approx(4000 * 24e9 / 4e15 + 0.008)


@given(st.integers(1, 5000))
def test_a_larger_batch_is_never_quicker_and_never_less_efficient(batch: int) -> None:
    now, more = ROOFLINE.batch_seconds(batch), ROOFLINE.batch_seconds(batch + 1)
    assert now <= more
    assert batch / now <= (batch + 1) / more * (1 + 1e-9)
