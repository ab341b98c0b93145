"""The Search Agent reward (section 9, SA-R1..R6)."""

from __future__ import annotations

from rufus_core.ports import Judge
from rufus_core.rewards.extract import last_boxed
from rufus_core.types import Episode, Json, Verdict

MIN_SUCCESSFUL_CALLS = 2  # SA-R3
NO_ANSWER_PENALTY = -0.1  # SA-R5
PASS_SCORE = 0.5  # from here on a graded answer counts as right


def search_verdict(episode: Episode, judge: Judge) -> Verdict:
    r"""Score a finished search episode.

    `reward = score * (1 - 0.5 * malformed / calls)`, where the judge's score in [0, 1] counts only for a committed
    answer and after two successful tool calls; -0.1 where a budget (calls, turns, tokens) ran out without an answer;
    0 otherwise. There is no unconditional positive term (SA-R6). The answer is the last balanced `\boxed{}` of the
    final message.

    Raises:
        InfrastructureError: the judge gave no verdict.
    """
    if episode.termination.value.startswith("aborted"):
        return Verdict.aborted(episode.termination.value)
    answer = committed_answer(episode)
    if answer is None:
        exhausted = episode.termination.outcome in ("budget_exhaustion", "context_overflow")
        return Verdict(
            score=NO_ANSWER_PENALTY if exhausted else 0.0,
            passed=False,
            reason=f"no final answer ({episode.termination.value})",
        )
    if episode.num_successful_calls < MIN_SUCCESSFUL_CALLS:
        return Verdict(0.0, passed=False, reason="fewer than two successful tool calls", extracted=answer)
    score = judge.score(answer_criterion(episode), answer)
    factor = 1.0 - 0.5 * episode.num_malformed_calls / episode.num_calls
    return Verdict(
        score=score * factor,
        passed=score >= PASS_SCORE,
        extracted=answer,
        parts={"judge": score, "malformed_factor": factor},
    )


def committed_answer(episode: Episode) -> str | None:
    """The boxed answer of a final message that makes no further calls; None where the policy didn't commit (SA-R2)."""
    if episode.final_text is None or episode.messages[-1].tool_calls:
        return None
    return last_boxed(episode.final_text) or None


def answer_criterion(episode: Episode) -> dict[str, Json]:
    """What the judge is asked: does the text answer the question as the reference does?"""
    question = next(m.content for m in reversed(episode.problem.prompt) if m.role == "user")
    return {"kind": "answer", "question": question, "reference": episode.problem.ground_truth["answer"]}
