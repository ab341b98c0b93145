"""The Search Agent reward: SA-R1..R6."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.errors import InfrastructureError
from rufus_core.rewards.judges import LexicalJudge
from rufus_core.rewards.search import search_verdict
from rufus_core.types import Episode, Json, Message, Problem, Termination, ToolCall, VerdictKind

PROBLEM = Problem.build(
    "person",
    "test",
    [Message(role="user", content="Where does Ann live?")],
    {"answer": "Lyon, Jena, Kyoto, Dover, Corin"},
)


class FixedJudge:
    """Says what it is told to and remembers what it was asked."""

    identity = "fixed"

    def __init__(self, score: float = 1.0) -> None:
        self.value = score
        self.asked: list[tuple[Mapping[str, Json], str]] = []

    def score(self, criterion: Mapping[str, Json], text: str) -> float:
        self.asked.append((criterion, text))
        return self.value


def episode(
    final: str | None = r"\boxed{Lyon}",
    *,
    good: int = 2,
    malformed: int = 0,
    failed: int = 0,
    end: Termination = Termination.TASK_COMPLETE,
    final_calls: tuple[ToolCall, ...] = (),
) -> Episode:
    messages = [*PROBLEM.prompt, Message(role="assistant"), Message(role="tool", content="x")]
    if final is not None:
        messages.append(Message(role="assistant", content=final, tool_calls=final_calls))
    return Episode(
        PROBLEM,
        messages,
        end,
        num_calls=good + malformed + failed,
        num_successful_calls=good,
        num_malformed_calls=malformed,
    )


@pytest.mark.parametrize(
    ("score", "good", "malformed", "reward"),
    [(1.0, 5, 0, 1.0), (1.0, 1, 0, 0.0), (0.6, 2, 2, 0.45), (0.8, 0, 0, 0.0), (0.0, 5, 0, 0.0)],
)
def test_vectors_of_the_specification_SA_R(score: float, good: int, malformed: int, reward: float) -> None:
    verdict = search_verdict(episode(good=good, malformed=malformed), FixedJudge(score))
    assert verdict.score == pytest.approx(reward)
    assert verdict.counts


def test_partial_credit_for_lists_SA_R1() -> None:
    verdict = search_verdict(episode(r"\boxed{Lyon, Jena, Dover}"), LexicalJudge())
    assert verdict.score == pytest.approx(0.6)
    assert verdict.passed
    assert verdict.extracted == "Lyon, Jena, Dover"


@pytest.mark.parametrize(
    "final",
    ["Lyon", r"\boxed{}", r"\boxed{Lyon", r"\boxed{Lyon} or \boxed{Jena", None],
)
def test_the_judge_is_asked_only_about_a_committed_answer_SA_R2(final: str | None) -> None:
    judge = FixedJudge()
    verdict = search_verdict(episode(final), judge)
    assert (verdict.score, verdict.passed, judge.asked) == (0.0, False, [])


def test_an_answer_beside_further_calls_is_not_committed_SA_R2() -> None:
    judge = FixedJudge()
    pending = (ToolCall(name="search", arguments={"query": "x"}),)
    verdict = search_verdict(episode(final_calls=pending, end=Termination.MAX_TOOL_CALLS), judge)
    assert (verdict.score, judge.asked) == (-0.1, [])


def test_the_judge_reads_the_last_box_with_question_and_reference() -> None:
    judge = FixedJudge()
    search_verdict(episode(r"Not \boxed{Jena} but \boxed{the town {Lyon}}."), judge)
    [(criterion, text)] = judge.asked
    assert text == "the town {Lyon}"
    assert criterion == {
        "kind": "answer",
        "question": "Where does Ann live?",
        "reference": "Lyon, Jena, Kyoto, Dover, Corin",
    }


def test_failed_calls_are_no_successful_ones_and_no_malformed_ones_SA_R3_R4() -> None:
    assert search_verdict(episode(good=1, failed=5), FixedJudge()).score == 0.0
    assert search_verdict(episode(good=2, failed=5), FixedJudge()).score == 1.0


@pytest.mark.parametrize("end", list(Termination))
def test_a_budget_that_ran_out_without_an_answer_costs_SA_R5(end: Termination) -> None:
    verdict = search_verdict(episode(None, end=end), FixedJudge())
    if end.value.startswith("aborted"):
        assert verdict.kind is VerdictKind.ABORTED
    else:
        assert verdict.score == (-0.1 if end.outcome in ("budget_exhaustion", "context_overflow") else 0.0)
    assert not verdict.passed


def test_a_tool_free_guess_earns_nothing_SA_R6() -> None:
    assert search_verdict(episode(good=0), FixedJudge(1.0)).score == 0.0


def test_passed_counts_the_judges_score_before_the_malformed_factor() -> None:
    verdict = search_verdict(episode(good=2, malformed=2), FixedJudge(0.5))
    assert verdict.passed
    assert verdict.score == pytest.approx(0.375)
    assert verdict.parts == {"judge": 0.5, "malformed_factor": 0.75}
    assert not search_verdict(episode(), FixedJudge(0.49)).passed


def test_a_judge_without_a_verdict_is_not_a_zero() -> None:
    class Broken(FixedJudge):
        def score(self, criterion: Mapping[str, Json], text: str) -> float:
            raise InfrastructureError("no verdict")

    with pytest.raises(InfrastructureError):
        search_verdict(episode(), Broken())


@given(
    score=st.floats(0, 1),
    good=st.integers(0, 50),
    malformed=st.integers(0, 50),
    failed=st.integers(0, 50),
    answered=st.booleans(),
    end=st.sampled_from([t for t in Termination if not t.value.startswith("aborted")]),
)
def test_bounds_SA_R4_R6(
    score: float, good: int, malformed: int, failed: int, answered: bool, end: Termination
) -> None:
    finished = episode(r"\boxed{x}" if answered else None, good=good, malformed=malformed, failed=failed, end=end)
    reward = search_verdict(finished, FixedJudge(score)).score
    if reward > 0:
        assert answered
        assert good >= 2
        assert score / 2 <= reward <= score
    else:
        assert reward in (0.0, -0.1)
