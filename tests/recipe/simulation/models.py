"""Small simulations, and strategies that draw them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from rufus_core.recipe.simulation.costs import MeasuredCost
from rufus_core.recipe.simulation.engine import EngineModel
from rufus_core.recipe.simulation.episodes import DrawnEpisode, LogNormal, ModelledEpisodes, Turn
from rufus_core.recipe.simulation.rollout import Failures, RolloutModel

COST = MeasuredCost(step_seconds=0.01, sequence_seconds=1e-4, context_seconds=1e-7, prefill_seconds=1e-5)
ROOMY = EngineModel(COST, cache_tokens=10**9, max_running=10**6)


@dataclass(frozen=True)
class Equal:
    """Episodes of one length, without a prompt to compute."""

    tokens: int

    def prompt(self, generator: np.random.Generator) -> int:
        return 0

    def episode(self, prompt_tokens: int, generator: np.random.Generator) -> DrawnEpisode:
        return DrawnEpisode(0, (Turn(self.tokens),), truncated=False)


def lognormals(least: float, most: float) -> st.SearchStrategy[LogNormal]:
    return st.builds(LogNormal, median=st.floats(least, most), sigma=st.floats(0.0, 1.2))


costs = st.builds(
    MeasuredCost,
    step_seconds=st.floats(1e-4, 0.1),
    sequence_seconds=st.floats(0.0, 1e-3),
    context_seconds=st.floats(0.0, 1e-6),
    prefill_seconds=st.floats(0.0, 1e-4),
)
single_turns = st.builds(
    ModelledEpisodes,
    prompt_tokens=lognormals(1, 50),
    turn_tokens=lognormals(1, 100),
    turn_budget=st.integers(1, 200),
    trajectory_budget=st.just(10**6),
)
agents = st.builds(
    ModelledEpisodes,
    prompt_tokens=lognormals(1, 50),
    turn_tokens=lognormals(1, 50),
    turn_budget=st.integers(10, 100),
    trajectory_budget=st.integers(100, 600),
    num_turns=lognormals(1, 8),
    max_turns=st.integers(1, 12),
    tool_seconds=lognormals(0, 3),
    observation_tokens=lognormals(0, 40),
    max_observation_tokens=st.integers(0, 60),
)


@st.composite
def rollouts(draw: st.DrawFn) -> RolloutModel:
    """Of any kind: with little cache, few slots, refilling and failures."""
    reserve = draw(st.integers(0, 50))
    engine = EngineModel(
        draw(costs),
        cache_tokens=draw(st.sampled_from([600, 2000, 10**9])),
        max_running=draw(st.sampled_from([1, 7, 10**6])),
        reserve_tokens=reserve,
    )
    between = draw(st.sampled_from([float("inf"), 50.0, 5.0]))
    return RolloutModel(
        num_engines=draw(st.integers(1, 4)),
        engine=engine,
        episodes=draw(st.one_of(agents, single_turns)),
        num_groups=draw(st.integers(1, 6)),
        group_size=draw(st.integers(1, 5)),
        oversample=draw(st.sampled_from([1.0, 1.5, 4.0])),
        max_rounds=draw(st.integers(1, 3)),
        kept_share=draw(st.floats(0.1, 1.0)),
        failures=Failures(between, draw(st.floats(0.0, 20.0))),
        seed=draw(st.integers(0, 1000)),
    )
