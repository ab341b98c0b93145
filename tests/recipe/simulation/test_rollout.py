"""The rollout's laws: conservation, no idling without a tail, more engines are no slower, Little's law."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_core.recipe.simulation.costs import MeasuredCost, decode_seconds
from rufus_core.recipe.simulation.engine import EngineModel
from rufus_core.recipe.simulation.episodes import LogNormal, ModelledEpisodes
from rufus_core.recipe.simulation.rollout import Failures, Rollout, RolloutModel, RolloutResult
from tests.recipe.simulation.models import COST, ROOMY, Equal, agents, costs, rollouts, single_turns


def play(model: RolloutModel) -> RolloutResult:
    return Rollout(model).run()


@settings(max_examples=200, deadline=None)
@given(rollouts())
def test_tokens_and_episodes_are_conserved(model: RolloutModel) -> None:
    result = play(model)
    assert result.drawn_tokens == sum(e.episode.sampled_tokens for e in result.episodes) + result.lost_tokens
    issued = sum(each.issued_groups for each in result.rounds)
    assert len(result.episodes) == issued * model.group_size
    kept = min(model.num_groups, sum(each.kept_groups for each in result.rounds))
    assert len(result.trained) == kept * model.group_size
    assert len(result.rounds) == model.max_rounds or kept == model.num_groups
    assert all(each.start <= each.end <= result.seconds for each in result.episodes)


@settings(max_examples=100, deadline=None)
@given(rollouts())
def test_an_engine_does_one_thing_at_a_time_within_its_rounds(model: RolloutModel) -> None:
    result = play(model)
    for engine in result.engines:
        assert all(before.end <= after.start + 1e-9 for before, after in pairwise(engine.segments))
        assert all(segment.batch <= model.engine.max_running for segment in engine.segments)
        assert all(segment.end <= result.seconds + 1e-9 for segment in engine.segments)


@settings(max_examples=50, deadline=None)
@given(rollouts())
def test_equal_models_give_equal_rollouts(model: RolloutModel) -> None:
    once, again = play(model), play(model)
    assert once.seconds == again.seconds
    assert [e.end for e in once.episodes] == [e.end for e in again.episodes]


@given(costs, st.integers(1, 50), st.integers(1, 40), st.integers(1, 4))
def test_without_a_tail_every_engine_works_all_the_time(
    cost: MeasuredCost, tokens: int, each: int, engines: int
) -> None:
    """Equal lengths, evenly spread: one batch from the first step to the last, which has a closed form."""
    model = RolloutModel(engines, replace(ROOMY, cost=cost), Equal(tokens), num_groups=engines, group_size=each)
    result = play(model)
    assert result.seconds == pytest.approx(decode_seconds(cost, tokens, each, 0))
    for engine in result.engines:
        assert sum(segment.end - segment.start for segment in engine.segments) == pytest.approx(result.seconds)


def test_one_long_response_keeps_all_others_waiting() -> None:
    """In hand: three of 10 tokens and one of 100, on an engine each."""
    lengths = iter([10, 10, 10, 100])

    class Uneven(Equal):
        def episode(self, prompt_tokens, generator):
            return Equal(next(lengths)).episode(prompt_tokens, generator)

    cost = MeasuredCost(step_seconds=1.0, sequence_seconds=0.0, context_seconds=0.0, prefill_seconds=0.0)
    result = play(RolloutModel(4, replace(ROOMY, cost=cost), Uneven(0), num_groups=4, group_size=1))
    assert result.seconds == 100
    assert [engine.clock for engine in result.engines] == [10, 10, 10, 100]


@settings(max_examples=100, deadline=None)
@given(costs, single_turns, st.integers(1, 3), st.integers(1, 12), st.integers(1, 4), st.integers(0, 99))
def test_twice_the_engines_are_never_slower(
    cost: MeasuredCost, episodes: ModelledEpisodes, engines: int, groups: int, size: int, seed: int
) -> None:
    """Where the cache holds all: each of them has a part of what an engine had before, and nothing beside it."""
    few = RolloutModel(engines, replace(ROOMY, cost=cost), episodes, groups, size, kept_share=0.5, seed=seed)
    one, two = play(few), play(replace(few, num_engines=2 * engines))
    assert two.seconds <= one.seconds * (1 + 1e-9)
    assert two.trained == one.trained


@settings(max_examples=100, deadline=None)
@given(costs, agents, st.integers(1, 3), st.integers(1, 6), st.integers(0, 99))
def test_littles_law(cost: MeasuredCost, episodes: ModelledEpisodes, engines: int, groups: int, seed: int) -> None:
    """Sequences at the engines on average = arrivals a second x mean residence: seen by engines, and by episodes."""
    result = play(RolloutModel(engines, replace(ROOMY, cost=cost), episodes, groups, 4, seed=seed))
    at_engines = sum(s.batch * (s.end - s.start) for engine in result.engines for s in engine.segments)
    residence = sum(each.end - each.start - each.tool_seconds for each in result.episodes)
    # An arrival waits for the end of the step that runs, outside of its batch.
    steps = sum(len(each.episode.turns) for each in result.episodes)
    longest = max(
        cost.batch_seconds(4 * groups)
        + cost.context_seconds * sum(e.episode.num_tokens for e in result.episodes)
        + cost.prefill_seconds * max(e.episode.num_tokens for e in result.episodes) * 4 * groups
        for e in result.episodes
    )
    assert at_engines <= residence * (1 + 1e-9)
    assert residence - at_engines <= steps * longest + 1e-9


def test_littles_law_is_exact_where_nobody_waits_for_a_step() -> None:
    episodes = ModelledEpisodes(LogNormal(median=1), LogNormal(median=80, sigma=0.9), 300, 10**6)
    cost = replace(COST, prefill_seconds=0.0)
    result = play(RolloutModel(3, replace(ROOMY, cost=cost), episodes, num_groups=20, group_size=8))
    at_engines = sum(s.batch * (s.end - s.start) for engine in result.engines for s in engine.segments)
    assert at_engines == pytest.approx(sum(each.end for each in result.episodes))


def test_a_small_cache_is_slower_and_loses_nothing() -> None:
    episodes = ModelledEpisodes(LogNormal(median=20), LogNormal(median=80, sigma=0.9), 300, 10**6)
    roomy = RolloutModel(1, ROOMY, episodes, num_groups=8, group_size=8)
    tight = replace(roomy, engine=EngineModel(COST, cache_tokens=1000, max_running=10**6))
    free, bound = play(roomy), play(tight)
    assert sum(engine.retractions for engine in free.engines) == 0
    assert sum(engine.retractions for engine in bound.engines) > 0
    assert bound.seconds > free.seconds
    assert bound.drawn_tokens == free.drawn_tokens
    assert max(s.batch for s in bound.engines[0].segments) < 64


def test_a_prompt_is_computed_once_for_its_group_on_an_engine() -> None:
    episodes = ModelledEpisodes(LogNormal(median=50), LogNormal(median=10), 300, 10**6)
    result = play(RolloutModel(2, ROOMY, episodes, num_groups=3, group_size=8))
    assert sum(engine.prefilled for engine in result.engines) == 2 * 3 * 50


def test_a_later_turn_computes_what_its_tools_said_and_after_a_failure_everything() -> None:
    episodes = ModelledEpisodes(
        LogNormal(median=100), LogNormal(median=20), 300, 10**6, LogNormal(median=3), 5, LogNormal(median=1),
        observation_tokens=LogNormal(median=7), max_observation_tokens=50,
    )  # fmt: skip
    model = RolloutModel(1, ROOMY, episodes, num_groups=1, group_size=1)
    calm = play(model)
    assert calm.engines[0].prefilled == 100 + 7 + 7
    assert calm.seconds == pytest.approx(
        2 * 1.0 + 114 * COST.prefill_seconds + sum(decode_seconds(COST, 20, 1, c) for c in (100, 127, 154))
    )
    failing = play(replace(model, failures=Failures(1.0, 0.5)))
    assert failing.num_failures > 0
    assert failing.engines[0].prefilled > calm.engines[0].prefilled
    assert failing.seconds > calm.seconds


def test_failures_cost_time_and_no_episode() -> None:
    episodes = ModelledEpisodes(LogNormal(median=20), LogNormal(median=200, sigma=0.8), 2000, 10**6)
    calm = RolloutModel(4, ROOMY, episodes, num_groups=16, group_size=8)
    failing = replace(calm, failures=Failures(mean_seconds_between=10.0, recovery_seconds=5.0))
    before, after = play(calm), play(failing)
    assert after.num_failures > 0
    assert after.lost_tokens > 0
    assert after.seconds > before.seconds
    assert [e.episode for e in after.episodes] == [e.episode for e in before.episodes]
