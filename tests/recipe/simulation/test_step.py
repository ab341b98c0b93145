"""A whole step: every GPU-second is told, and training follows the rollout."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_core.recipe.simulation.rollout import RolloutModel
from rufus_core.recipe.simulation.step import StepModel, TrainerModel, simulate_step
from tests.recipe.simulation.models import COST, ROOMY, Equal, rollouts

trainers = st.builds(
    TrainerModel,
    flops_per_token=st.floats(1.0, 1e3),
    flops_per_second=st.floats(1.0, 1e6),
    update_seconds=st.floats(0.0, 30.0),
)


@settings(max_examples=200, deadline=None)
@given(rollouts(), trainers, st.sampled_from([1, 8]), st.sampled_from([0, 16]))
def test_every_gpu_second_of_a_step_is_told_once(
    rollout: RolloutModel, trainer: TrainerModel, per_engine: int, train_gpus: int
) -> None:
    result = simulate_step(StepModel(rollout, trainer, per_engine, train_gpus))
    assert result.num_gpus == rollout.num_engines * per_engine + train_gpus
    assert result.gpu_time.total == pytest.approx(result.num_gpus * result.seconds)
    assert all(seconds >= -1e-6 * result.gpu_time.total for seconds in result.gpu_time.kinds().values())
    assert 0 <= result.slowest_seconds <= result.rollout_seconds + 1e-9


def test_colocated_without_a_tail_nothing_idles_and_apart_each_side_waits_for_the_other() -> None:
    rollout = RolloutModel(2, ROOMY, Equal(100), num_groups=4, group_size=2)
    trainer = TrainerModel(flops_per_token=6.0, flops_per_second=1000.0, update_seconds=3.0)
    together = simulate_step(StepModel(rollout, trainer, gpus_per_engine=8, train_gpus=0))
    assert together.trained_tokens == 800
    assert together.train_seconds == pytest.approx(800 * 6 / 1000)
    assert together.gpu_time.idle == pytest.approx(0, abs=1e-6)
    apart = simulate_step(StepModel(rollout, trainer, gpus_per_engine=8, train_gpus=4))
    waited = 4 * apart.rollout_seconds + 16 * apart.train_seconds
    assert apart.gpu_time.idle == pytest.approx(waited)


def test_the_slowest_tenth_begins_when_nine_of_ten_have_ended() -> None:
    class Staggered(Equal):
        def episode(self, prompt_tokens, generator):
            nonlocal issued
            issued += 1
            return Equal(issued).episode(prompt_tokens, generator)

    issued = 0
    rollout = RolloutModel(10, ROOMY, Staggered(0), num_groups=10, group_size=1)  # 1 to 10 tokens, an engine each
    result = simulate_step(StepModel(rollout, TrainerModel(1.0, 1.0, 0.0), 1, 0))
    ends = sorted(each.end for each in result.rollout.episodes)
    assert result.slowest_seconds == pytest.approx(ends[9] - ends[8])
    assert ends[9] > ends[8] > 9 * COST.step_seconds
