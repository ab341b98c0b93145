"""The Search Agent reward (section 9, SA-R1..R6)."""

from __future__ import annotations

from rufus_core.ports.judging import Judge
from rufus_core.rewards.extract import Extraction, extract
from rufus_core.types import Episode, Json, Verdict

MIN_SUCCESSFUL_CALLS = 2  # SA-R3
MALFORMED_FACTOR_FLOOR = 0.5  # SA-R4: what is left when every call was malformed
NO_ANSWER_PENALTY = -0.1  # SA-R5
PASS_SCORE = 0.5  # from here on a graded answer counts as right


def search_verdict(
    episode: Episode,
    judge: Judge,
    *,
    min_successful_calls: int = MIN_SUCCESSFUL_CALLS,
    malformed_factor_floor: float = MALFORMED_FACTOR_FLOOR,
    no_answer_penalty: float = NO_ANSWER_PENALTY,
) -> Verdict:
    r"""Score a finished search episode.

    `reward = score * (1 - (1 - floor) * malformed / calls)`, where the judge's score in [0, 1] counts only for a
    committed answer and after `min_successful_calls`; `no_answer_penalty` where a budget (calls, turns, tokens) ran out
    without an answer; 0 otherwise. There is no unconditional positive term (SA-R6). The answer is the last balanced
    `\boxed{}` of the final message.

    Raises:
        InfrastructureError: the judge gave no verdict.
    """
    if episode.termination.value.startswith("aborted"):
        return Verdict.aborted(episode.termination.value)
    answer = committed_answer(episode)
    if answer is None:
        exhausted = episode.termination.outcome in ("budget_exhaustion", "context_overflow")
        penalty = no_answer_penalty if exhausted else 0.0
        return Verdict.scored(penalty, False, f"no final answer ({episode.termination.value})")
    if episode.num_successful_calls < min_successful_calls:
        reason = f"{episode.num_successful_calls} of {min_successful_calls} successful tool calls"
        return Verdict.binary(False, reason, answer)
    score = judge.score(answer_criterion(episode), answer)
    factor = 1.0 - (1.0 - malformed_factor_floor) * episode.num_malformed_calls / max(1, episode.num_calls)
    parts = {"judge": score, "malformed_factor": factor}
    return Verdict.scored(score * factor, score >= PASS_SCORE, extracted=answer, parts=parts)


def committed_answer(episode: Episode) -> str | None:
    """The boxed answer of a final message that makes no further calls; None where the policy didn't commit (SA-R2)."""
    if episode.final_text is None or episode.messages[-1].tool_calls:
        return None
    return extract(episode.final_text, Extraction.BOX)


def answer_criterion(episode: Episode) -> dict[str, Json]:
    """What the judge is asked: does the text answer the question as the reference does?"""
    question = next(m.content for m in reversed(episode.problem.prompt) if m.role == "user")
    return {"kind": "answer", "question": question, "reference": episode.problem.ground_truth["answer"]}
