"""Environments of one episode, and the gyms that open them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from rufus_core.types import Episode, Problem, ToolCall, ToolResult, ToolSchema, Verdict


class Environment(Protocol):
    """One episode's world (GYM-04). Opened for one rollout and never shared."""

    @property
    def tools(self) -> Sequence[ToolSchema]: ...

    def call(self, call: ToolCall) -> ToolResult:
        """Run a well-formed call. A tool's own failure is `ToolResult(failed=True)`; raises InfrastructureError."""
        ...

    def score(self, episode: Episode) -> Verdict:
        """Score once, after the interaction ended (GYM-05)."""
        ...

    def cleanup(self) -> None:
        """Runs on every outcome; calling it twice does no harm."""
        ...


class Gym(Protocol):
    """Opens environments of one kind, and holds what they share (worker pools, servers, corpora).

    `open` may be called from several threads at once; each environment is used from one thread at a time.
    """

    def open(self, problem: Problem) -> Environment: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...
