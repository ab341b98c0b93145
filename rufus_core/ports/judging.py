"""Who scores what no program can decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rufus_core.types import Json, Message


class Judge(Protocol):
    """Answers one question about one text. `identity` is part of every number's protocol."""

    @property
    def identity(self) -> str: ...

    def score(self, criterion: Mapping[str, Json], text: str) -> float:
        """A score in [0, 1]. Raises InfrastructureError when no verdict can be had: unscored, never 0."""
        ...

    def holds(self, rubric: Mapping[str, Json], conversation: Sequence[Message], response: str) -> bool:
        """Whether the final response, without its reasoning, meets the rubric. Raises as `score` does."""
        ...

    def close(self) -> None:
        """Calling it twice does no harm."""
        ...


class RewardScorer(Protocol):
    """A reward model: scores final responses, on a scale of its own (RM-D3)."""

    @property
    def identity(self) -> str: ...

    def scores(self, responses: Sequence[tuple[Sequence[Message], str]]) -> list[float]:
        """One for each prompt and final response, of which only the text after its reasoning is seen.

        A score that is no finite number says nothing. Raises InfrastructureError when none can be had.
        """
        ...
