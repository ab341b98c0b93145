"""How long episodes are: drawn from stated distributions, or taken from the rollouts of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from pydantic import Field

from rufus_core.types import Frozen


class LogNormal(Frozen):
    """Half of the values lie below the median; sigma is the deviation of their logarithm, 0 for a constant."""

    median: Annotated[float, Field(ge=0.0)]
    sigma: Annotated[float, Field(ge=0.0, le=4.0)] = 0.0

    def draw(self, generator: np.random.Generator) -> float:
        return self.median * math.exp(self.sigma * generator.standard_normal())


ONE, NONE = LogNormal(median=1), LogNormal(median=0)


@dataclass(frozen=True, slots=True)
class Turn:
    tokens: int  # drawn
    tool_seconds: float = 0.0  # after them; 0 after the last turn
    observation_tokens: int = 0


@dataclass(frozen=True, slots=True)
class DrawnEpisode:
    prompt_tokens: int
    turns: tuple[Turn, ...]
    truncated: bool  # by the budget of a turn or of the episode

    @property
    def sampled_tokens(self) -> int:
        return sum(turn.tokens for turn in self.turns)

    @property
    def num_tokens(self) -> int:
        """Of the whole trajectory."""
        return self.prompt_tokens + self.sampled_tokens + sum(turn.observation_tokens for turn in self.turns)


class EpisodeSource(Protocol):
    """Where a simulation's episodes come from. What is drawn depends on the generators alone, never on time."""

    def prompt(self, generator: np.random.Generator) -> int:
        """Tokens of a group's prompt."""

    def episode(self, prompt_tokens: int, generator: np.random.Generator) -> DrawnEpisode: ...


@dataclass(frozen=True, slots=True)
class ModelledEpisodes:
    """Independent turns of stated lengths, cut off at the budgets."""

    prompt_tokens: LogNormal
    turn_tokens: LogNormal
    turn_budget: int
    trajectory_budget: int
    num_turns: LogNormal = ONE
    max_turns: int = 1
    tool_seconds: LogNormal = NONE
    max_tool_seconds: float = math.inf
    observation_tokens: LogNormal = NONE
    max_observation_tokens: int = 0

    def prompt(self, generator: np.random.Generator) -> int:
        return min(max(1, round(self.prompt_tokens.draw(generator))), self.trajectory_budget - 1)

    def episode(self, prompt_tokens: int, generator: np.random.Generator) -> DrawnEpisode:
        num_turns = min(max(1, round(self.num_turns.draw(generator))), self.max_turns)
        room, turns = self.trajectory_budget - prompt_tokens, list[Turn]()
        for number in range(num_turns):
            wanted = max(1, round(self.turn_tokens.draw(generator)))
            budget = min(self.turn_budget, room)
            tokens = min(wanted, budget)
            room -= tokens
            if wanted > budget or number == num_turns - 1:
                turns.append(Turn(tokens))
                return DrawnEpisode(prompt_tokens, tuple(turns), truncated=wanted > budget)
            observation = min(max(0, round(self.observation_tokens.draw(generator))), self.max_observation_tokens)
            seconds = min(self.tool_seconds.draw(generator), self.max_tool_seconds)
            if observation >= room:  # it leaves no room to answer
                break
            turns.append(Turn(tokens, seconds, observation))
            room -= observation
        else:
            raise AssertionError("the last turn ends an episode")
        turns.append(Turn(tokens))
        return DrawnEpisode(prompt_tokens, tuple(turns), truncated=True)


@dataclass(frozen=True, slots=True)
class RecordedEpisodes:
    """Episodes as they were: each simulated one is one of these, drawn with replacement.

    Tool seconds are in no record, so they are drawn anew.
    """

    recorded: Sequence[DrawnEpisode]
    tool_seconds: LogNormal = NONE
    max_tool_seconds: float = math.inf

    def prompt(self, generator: np.random.Generator) -> int:
        return self.recorded[int(generator.integers(len(self.recorded)))].prompt_tokens

    def episode(self, prompt_tokens: int, generator: np.random.Generator) -> DrawnEpisode:
        chosen = self.recorded[int(generator.integers(len(self.recorded)))]
        *before, last = chosen.turns
        turns = [Turn(turn.tokens, self._wait(generator), turn.observation_tokens) for turn in before]
        return DrawnEpisode(prompt_tokens, (*turns, last), chosen.truncated)

    def _wait(self, generator: np.random.Generator) -> float:
        return min(self.tool_seconds.draw(generator), self.max_tool_seconds)
