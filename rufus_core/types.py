"""Shared types. Serialised ones are pydantic (frozen); those of the hot path are dataclasses."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Json = Any  # a JSON value: None, bool, int, float, str, list, dict
Split = Literal["train", "validation", "heldout"]
Category = Literal["general_agent", "general_chat", "stem", "math", "code", "coding_agent"]  # MIX-02


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(Frozen):
    name: str
    arguments: dict[str, Json]


class Message(Frozen):
    """One role-tagged message (NORM-01). `reasoning` is the text inside the think tags, None when there is none."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


class ToolSchema(Frozen):
    """A tool as the policy sees it. `parameters` is a JSON Schema object."""

    name: str
    description: str = ""
    parameters: dict[str, Json] = Field(default_factory=lambda: {"type": "object", "properties": {}})


def content_id(*parts: Json) -> str:
    """16 hex digits that depend on the parts' content alone, never on PYTHONHASHSEED."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Problem(Frozen):
    """One RL item: a prompt, the tools it may use and what its verifier needs.

    `family` names the verifier within a stage (for example "arithmetic"); `source` is the data source's name.
    `ground_truth` never reaches the policy.
    """

    id: str
    family: str
    source: str
    prompt: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    ground_truth: dict[str, Json] = Field(default_factory=dict)

    @classmethod
    def build(
        cls,
        family: str,
        source: str,
        prompt: Sequence[Message],
        ground_truth: dict[str, Json],
        tools: Sequence[ToolSchema] = (),
    ) -> Problem:
        """A problem whose id is a hash of what it asks (prompt and ground truth), so equal problems have equal ids."""
        key = content_id(family, [m.model_dump() for m in prompt], ground_truth)
        return cls(
            id=key, family=family, source=source, prompt=tuple(prompt), tools=tuple(tools), ground_truth=ground_truth
        )


class Conversation(Frozen):
    """One supervised record in the common schema (NORM-01), before splitting and masking."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    source: str
    category: Category


class VerdictKind(enum.StrEnum):
    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    UNSCORABLE = "unscorable"  # the reference is at fault
    ABORTED = "aborted"  # the infrastructure is at fault (CA-R3)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier, judge or reward model says of one finished rollout.

    `score` is the raw reward and means something only where the verdict is a pass or a fail. `extracted` is what was
    taken for the answer. `seconds` of wall-clock time it took: a measurement, which equality leaves out.
    """

    kind: VerdictKind
    score: float = 0.0
    reason: str = ""
    extracted: str | None = None
    parts: dict[str, float] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)

    @property
    def passed(self) -> bool:
        """What pass@1 counts."""
        return self.kind is VerdictKind.PASS

    @property
    def counts(self) -> bool:
        """Whether it says something of the policy: a pass or a fail."""
        return self.kind in (VerdictKind.PASS, VerdictKind.FAIL)

    @classmethod
    def scored(
        cls,
        score: float,
        passed: bool,
        reason: str = "",
        extracted: str | None = None,
        parts: dict[str, float] | None = None,
    ) -> Verdict:
        """A pass or a fail whose score is any number."""
        return cls(VerdictKind.PASS if passed else VerdictKind.FAIL, score, reason, extracted, parts or {})

    @classmethod
    def binary(
        cls, passed: bool, reason: str = "", extracted: str | None = None, parts: dict[str, float] | None = None
    ) -> Verdict:
        """A pass with score 1 or a fail with score 0."""
        return cls.scored(float(passed), passed, reason, extracted, parts)

    @classmethod
    def unscorable(cls, reason: str) -> Verdict:
        return cls(VerdictKind.UNSCORABLE, reason=reason)

    @classmethod
    def aborted(cls, reason: str) -> Verdict:
        return cls(VerdictKind.ABORTED, reason=reason)


class Termination(enum.StrEnum):
    """Why an episode ended: exactly one reason (GYM-08)."""

    TASK_COMPLETE = "task_complete"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_ITERATIONS = "max_iterations"
    MAX_GENERATION_LENGTH = "max_generation_length"
    MAX_CONTEXT_LENGTH = "max_context_length"
    RUNTIME_ERROR = "runtime_error"
    ABORTED_SANDBOX_BOOT = "aborted_sandbox_boot"
    ABORTED_VERIFIER_TIMEOUT = "aborted_verifier_timeout"
    ABORTED_CONNECTION = "aborted_connection"

    @property
    def outcome(self) -> Literal["completion", "budget_exhaustion", "context_overflow", "execution_failure"]:
        """The class of the reason that the trainer tells apart (GYM-08)."""
        if self is Termination.TASK_COMPLETE:
            return "completion"
        if self in (Termination.MAX_TOOL_CALLS, Termination.MAX_ITERATIONS):
            return "budget_exhaustion"
        if self in (Termination.MAX_GENERATION_LENGTH, Termination.MAX_CONTEXT_LENGTH):
            return "context_overflow"
        return "execution_failure"


class Fate(enum.StrEnum):
    """What becomes of a rollout that was issued: exactly one of these (conservation)."""

    TRAINED = "trained"
    FILTERED = "filtered"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool returned. `failed` marks a tool error, which is an observation for the policy and not a crash."""

    content: str
    failed: bool = False


@dataclass(slots=True)
class Episode:
    """A finished interaction, as a verifier sees it: the transcript and counts, no tokens."""

    problem: Problem
    messages: list[Message]  # prompt included; the policy's messages as parsed from its tokens
    termination: Termination
    num_calls: int = 0  # attempted tool calls
    num_successful_calls: int = 0  # parsed, executed, returned without a tool error
    num_malformed_calls: int = 0  # unparsable, unknown tool, or arguments that fail the schema
    num_response_tokens: int = 0
    num_final_tokens: int = 0  # of the last turn, after thinking

    @property
    def final_text(self) -> str | None:
        """The last assistant message's text after its think block; None if the policy never finished a message."""
        last = self.messages[-1] if self.messages else None
        return last.content if last is not None and last.role == "assistant" else None


@dataclass(slots=True)
class Trajectory:
    """The tokens of one rollout: authoritative (GYM-17). All lists have one entry per token.

    `loss_mask` is 1 exactly on sampled tokens; `logprobs` is the rollout's log-prob there and 0.0 elsewhere.
    `routed_experts` is [tokens - 1, layers, experts per token], where the engine was asked for it.
    """

    problem_id: str
    sample_index: int
    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    episode: Episode
    verdict: Verdict
    weight_version: str
    routed_experts: NDArray[np.int32] | None = None
    reward: float = 0.0  # the verdict's score after shaping

    @property
    def truncated(self) -> bool:
        return self.episode.termination.outcome == "context_overflow"

    @property
    def usable(self) -> bool:
        """Whether it may enter group statistics: neither aborted nor unscorable."""
        return self.verdict.counts
