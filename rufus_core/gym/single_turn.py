"""Environments without tools: one answer, one verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Self

from rufus_core.ports import Environment, Gym
from rufus_core.types import Episode, Problem, ToolCall, ToolResult, ToolSchema, Verdict

Verify = Callable[[Episode], Verdict]


@dataclass(frozen=True, slots=True)
class _SingleTurn:
    verify: Verify
    tools: Sequence[ToolSchema] = ()

    def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(f"error: there is no tool named {call.name}", failed=True)

    def score(self, episode: Episode) -> Verdict:
        return self.verify(episode)

    def cleanup(self) -> None:
        """Nothing is held."""


class SingleTurnGym:
    """Scores one answer with `verify`. `held` are the verifier's own resources, closed with the gym."""

    def __init__(self, verify: Verify, held: Sequence[AbstractContextManager[object]] = ()) -> None:
        self._verify, self._held, self._stack = verify, held, ExitStack()

    def open(self, problem: Problem) -> Environment:  # noqa: ARG002 - every problem has the same world: none
        return _SingleTurn(self._verify)

    def __enter__(self) -> Self:
        for resource in self._held:
            self._stack.enter_context(resource)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


class MixedGym:
    """Sends each problem to the gym of its family; used where one set mixes several stages' problems."""

    def __init__(self, by_family: Mapping[str, Gym]) -> None:
        self._by_family, self._stack = by_family, ExitStack()

    def open(self, problem: Problem) -> Environment:
        return self._by_family[problem.family].open(problem)

    def __enter__(self) -> Self:
        for gym in dict.fromkeys(self._by_family.values()):
            self._stack.enter_context(gym)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
