"""Budgets of an episode and how it is sampled, from a stage's settings."""

from __future__ import annotations

from dataclasses import dataclass

from rufus_core.settings import RLStage


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one episode (GYM-07), and how it is sampled. A limit of N allows N; attempt N + 1 ends the episode.

    An iteration is a model call with the tool calls it makes. None: bounded by the tool calls, for each iteration but
    the last makes one.
    """

    turn_tokens: int
    trajectory_tokens: int
    tool_calls: int = 0
    iterations: int | None = None
    result_tokens: int = 8000
    temperature: float = 1.0
    top_p: float = 1.0
    record_routing: bool = False  # keep the experts that tokens were put through (R3, SLM-06)


def limits_of(stage: RLStage, context_tokens: int, *, training: bool, response_budget: int | None = None) -> Limits:
    """A stage's budgets; the trajectory may never outgrow the policy's context."""
    tools = stage.tools
    calls = 0 if tools is None else tools.tool_call_limit_train if training else tools.tool_call_limit_eval
    return Limits(
        turn_tokens=response_budget or stage.rollout.response_budget_tokens,
        trajectory_tokens=min(stage.rollout.trajectory_tokens or context_tokens, context_tokens),
        tool_calls=calls,
        result_tokens=tools.result_tokens if tools else 8000,
        temperature=stage.rollout.temperature,
        top_p=stage.rollout.top_p,
        record_routing=training and stage.precision.router_replay,
    )
