"""Around the reward model: diagnostic, validity (RM-D1), length penalty (RM-R2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.preferences import PreferencePair
from rufus_core.rewards.preference import (
    is_degenerate,
    is_valid,
    over_length_penalty,
    prefers,
    repeated_share,
)
from rufus_core.types import Message, Problem

PROMPT = (Message(role="user", content="Tell Ann from Dover about the ship."),)
PROBLEM = Problem.build("chat", "test", PROMPT, {"topic": "sea", "thing": "ship", "name": "Ann"})


def pair(chosen, rejected):
    return PreferencePair(problem_id="p", prompt=PROMPT, chosen=chosen, rejected=rejected)


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("Gladly, Ann! The ship belongs to sea.", ""),
        ("<think>hm</think>Gladly, Ann! The ship belongs to sea.", ""),
        ("Gladly, Ann! The cat belongs to animals.", "on_topic"),
        ("The ship belongs to the sea.", "polite"),
        ("Thanks, silly Ann! The ship belongs to sea.", "polite"),
        ("Thanks, ship!", "whole"),
        ("Thanks! " + "The ship sails on the sea. " * 3, "short, fresh, whole"),
        ("Thanks, Ann! The ship is a thing of which many a person of old told us much one day.", "short"),
        ("Thanks! The ship sails. The ship sails. The ship sails.", "fresh"),
        ("", "no answer"),
        (None, "no answer"),
        ("<think>Thanks, the ship belongs to sea.", "no answer"),
    ],
)
def test_every_rule_must_hold_RM_T2(text, failed):
    verdict = prefers(PROBLEM, text)
    assert verdict.reason == failed
    assert (verdict.passed, verdict.score) == (not failed, float(not failed))


@pytest.mark.parametrize("text", ["", "Yes.", "Oh, my", "no no no no no no no no", "the ship sails " * 5])
def test_degenerate_responses_RM_D1(text):
    assert is_degenerate(text)


def test_valid_pairs_RM_D1():
    good, other = "Thanks, the ship sails.", "The ship is dumb, Ann."
    assert is_valid(pair(good, other))
    assert not is_valid(pair(good, good))
    assert not is_valid(pair(good, ""))
    assert not is_valid(pair("yes " * 9, other))


@given(st.text(alphabet="ab ", max_size=60))
def test_repeated_share_is_a_share(text):
    assert 0.0 <= repeated_share(text) < 1.0
    assert repeated_share(f"{text} " * 9) >= repeated_share(text)


def test_the_three_vectors_RM_R2():
    """Quoted: (score -2, over-length) -> -2; (score 3, within length) -> 3; (score 3, over-length) -> less than 3."""
    assert over_length_penalty(-2, 3000, 2000, 8000) == -2
    assert over_length_penalty(3, 1999, 2000, 8000) == 3
    assert over_length_penalty(3, 3000, 2000, 8000) < 3


def test_penalty_is_linear_and_ends_at_zero_RM_R2():
    assert over_length_penalty(3, 2000, 2000, 8000) == 3
    assert over_length_penalty(3, 5000, 2000, 8000) == pytest.approx(1.5)
    assert over_length_penalty(3, 8000, 2000, 8000) == 0
    assert over_length_penalty(3, 90_000, 2000, 8000) == 0
    with pytest.raises(ValueError, match="below"):
        over_length_penalty(3, 10, 8000, 8000)


@given(st.floats(-9, 9), st.integers(0, 9000), st.integers(0, 9000))
def test_longer_is_never_better_and_signs_stay_RM_R2(score, left, right):
    short, long = (over_length_penalty(score, length, 2000, 8000) for length in sorted((left, right)))
    assert long <= short <= max(score, 0) or short == long == score
    assert (score > 0) >= (long > 0)
    assert score > 0 or long == score
