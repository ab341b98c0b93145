"""The protocols that rooms above and the outside implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from rufus_core.types import Episode, Json, Problem, ToolCall, ToolResult, ToolSchema, Verdict


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """SGLang's sampling parameters (the subset the recipe uses)."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()
    sampling_seed: int = 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    rid: str
    input_ids: Sequence[int]
    sampling_params: SamplingParams


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """`output_ids` includes the stop token where one was sampled; `output_logprobs` has one entry for each id."""

    rid: str
    output_ids: list[int]
    output_logprobs: list[float]
    finish_reason: Literal["stop", "length", "abort"]
    weight_version: str


class Engine(Protocol):
    """Token ids in; token ids and log-probs out (SGLang's native `/generate`)."""

    @property
    def context_length(self) -> int: ...

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """Results in the order of the requests. Raises EngineError for input that can't be served."""
        ...


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


class Judge(Protocol):
    """Answers one question about one text. `identity` is part of every number's protocol."""

    @property
    def identity(self) -> str: ...

    def score(self, criterion: Mapping[str, Json], text: str) -> float:
        """A score in [0, 1]. Raises InfrastructureError when no verdict can be had: unscored, never 0."""
        ...


class MetricSink(Protocol):
    """Where a job reports its progress. The core writes lines to a file; adapters pass them on."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
