"""Environments without tools: one answer, one verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from rufus_core.errors import DataError
from rufus_core.ports.gym import Environment
from rufus_core.types import Episode, Problem, ToolCall, ToolResult, ToolSchema, Verdict

Verify = Callable[[Episode], Verdict]


@dataclass(frozen=True, slots=True)
class _SingleTurn:
    verify: Verify
    tools: Sequence[ToolSchema] = ()

    def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(f"error: there is no tool named {call.name}", failed=True)

    def score(self, episode: Episode) -> Verdict:
        """A record that its verifier can't use is at fault itself, and neither the policy nor the run."""
        try:
            return self.verify(episode)
        except DataError as error:
            return Verdict.unscorable(str(error))

    def cleanup(self) -> None:
        """Nothing is held."""


class SingleTurnGym:
    """Scores one answer with `verify`."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify

    def open(self, problem: Problem) -> Environment:  # noqa: ARG002 - every problem has the same world: none
        return _SingleTurn(self._verify)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is held."""
