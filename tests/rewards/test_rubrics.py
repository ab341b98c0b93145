"""Rubrics (IF-R1, IF-R2): each on its own, all must hold, an unknown one raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.errors import ConfigError, DataError, InfrastructureError
from rufus_core.rewards.judges import LexicalJudge
from rufus_core.rewards.rubrics import score_rubrics
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.types import Message, Problem, VerdictKind
from tests.sandbox.real import require_isolation

# The kinds that the miniature asks for
ASKED = ("num_words", "first_word", "last_word", "include_word", "exclude_word", "end_sign", "commas")


class DeadJudge:
    identity = "test:dead"

    def score(self, criterion, text):
        raise InfrastructureError("no answer from the judge")

    def holds(self, rubric, conversation, response):
        raise InfrastructureError("no answer from the judge")


def no_sandbox():
    raise AssertionError("no checker runs here")


def score(rubrics, text, judge=None):
    problem = Problem.build("instructions", "test", [Message(role="user", content="?")], {"rubrics": rubrics})
    return score_rubrics(problem, text, judge or LexicalJudge(), no_sandbox)


@pytest.mark.parametrize(
    ("rubric", "right", "wrong"),
    [
        ({"kind": "num_words", "count": 3}, ["ship wave shore!", "a - b, c"], ["ship wave", "a b c d"]),
        ({"kind": "first_word", "word": "ship"}, ["Ship wave", '"ship", wave'], ["ships wave", "wave ship"]),
        ({"kind": "last_word", "word": "wave"}, ["ship Wave!", "wave"], ["wave ship", "ship waves"]),
        ({"kind": "include_word", "word": "ship"}, ["the SHIP sails"], ["the ships sail", "shipping"]),
        ({"kind": "exclude_word", "word": "ship"}, ["the ships sail", "shipping"], ["the ship.", "SHIP"]),
        ({"kind": "end_sign", "sign": "!"}, ["ship!", "ship !\n"], ["ship", "ship!?", "!ship"]),
        ({"kind": "commas"}, ["ship, wave, shore!", "ship"], ["ship wave", "ship, wave shore", "ship,, wave"]),
        ({"kind": "topic", "topic": "sea"}, ["a ship"], ["a cat"]),
        ({"kind": "polite"}, ["thanks a lot"], ["a ship", "thanks, silly"]),
    ],
)
def test_each_kind_tells_right_from_wrong(rubric, right, wrong):
    for text in right:
        assert score([rubric], text).passed, text
    for text in wrong:
        assert not score([rubric], text).passed, text


def test_every_rubric_must_hold_and_is_reported_on_its_own_IF_R1():
    rubrics = [{"kind": "num_words", "count": 2}, {"kind": "topic", "topic": "sea"}, {"kind": "end_sign", "sign": "!"}]
    assert score(rubrics, "ship wave!").score == 1.0
    verdict = score(rubrics, "ship wave")
    assert (verdict.score, verdict.passed, verdict.reason) == (0.0, False, "2_end_sign")
    assert verdict.parts == {"0_num_words": 1.0, "1_topic": 1.0, "2_end_sign": 0.0}


def test_two_rubrics_of_one_kind_are_both_reported():
    rubrics = [{"kind": "include_word", "word": "ship"}, {"kind": "include_word", "word": "wave"}]
    assert score(rubrics, "ship").parts == {"0_include_word": 1.0, "1_include_word": 0.0}


@pytest.mark.parametrize("text", [None, "", "  ", "<think>ship</think>", "<think>ship"])
def test_no_answer_fails_even_where_nothing_is_required(text):
    verdict = score([{"kind": "exclude_word", "word": "cat"}], text)
    assert verdict.kind is VerdictKind.FAIL


def test_thinking_is_not_seen():
    assert score([{"kind": "exclude_word", "word": "cat"}], "<think>cat</think>ship").passed


def test_unknown_and_incomplete_rubrics_raise():
    with pytest.raises(DataError, match="rhyme"):
        score([{"kind": "num_words", "count": 9}, {"kind": "rhyme"}], "ship")
    with pytest.raises(DataError, match="count"):
        score([{"kind": "num_words"}], "ship")


def test_no_rubrics_is_unscorable():
    assert score([], "ship").kind is VerdictKind.UNSCORABLE


def test_a_failing_judge_aborts_and_is_never_zero():
    verdict = score([{"kind": "polite"}], "thanks", DeadJudge())
    assert verdict.kind is VerdictKind.ABORTED


def test_the_judge_is_not_asked_where_code_decides_IF_R2():
    assert score([{"kind": "num_words", "count": 1}], "ship", DeadJudge()).passed


@given(st.sampled_from(ASKED), st.text(max_size=40))
def test_checkers_are_pure_and_never_crash(kind, text):
    rubric = {"kind": kind, "count": 2, "word": "ship", "sign": "!"}
    assert score([rubric], text) == score([rubric], text)


@given(st.text(max_size=40))
def test_a_word_is_either_included_or_excluded(text):
    included, excluded = ({"kind": kind, "word": "ship"} for kind in ("include_word", "exclude_word"))
    if text.strip() and "<think>" not in text and "</think>" not in text:
        assert score([included], text).passed is not score([excluded], text).passed


SHOUTS = {"kind": "generated", "source": "def shouts(text):\n    return text.isupper()\n", "function": "shouts"}


def test_a_generated_checker_is_a_rubric_like_any_other_IF_R2():
    require_isolation()
    problem = Problem.build("instructions", "test", [Message(role="user", content="?")], {"rubrics": [SHOUTS]})
    with InterpreterPool(1) as pool:
        said = {text: score_rubrics(problem, text, LexicalJudge(), lambda: pool) for text in ("SHIP", "ship")}
    assert {text: verdict.parts for text, verdict in said.items()} == {
        "SHIP": {"0_generated": 1.0},
        "ship": {"0_generated": 0.0},
    }
    with pytest.raises(ConfigError, match="needs a sandbox"):
        score_rubrics(problem, "SHIP", LexicalJudge())


def test_a_judge_sees_the_conversation_but_no_thinking():
    class Asked(LexicalJudge):
        def holds(self, rubric, conversation, response):
            self.asked = (dict(rubric), [message.content for message in conversation], response)
            return True

    judge, rubric = Asked(), {"kind": "judge", "question": "Does it answer in French?"}
    assert score([rubric], "<think>hm</think>Oui.", judge).passed
    assert judge.asked == (rubric, ["?"], "Oui.")
