"""Fuzzy string match for science answers (RRL-R1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.rewards.fuzzy import fuzzy_match, token_similarity
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.reasoning import verify_reasoning
from rufus_core.types import Message, Problem, VerdictKind

words = st.lists(st.sampled_from(["iron", "acid", "of", "rate", "salt", "cell"]), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("iron", "Iron."),
        ("the cell wall", "cell wall"),
        (r"\text{iron}", "$iron$"),
        ("1,000.0 K", "1000 K"),
        ("-3 V", "\u22123 V"),
        ("B", "(B)"),
        ("B", "B. iron"),
        ("(B) iron", "B"),
        ("(B) iron", "iron"),
        ("28 %", "28%"),
        ("the rate of the reaction doubles when the acid is hot", "rate of reaction doubles when acid is hot"),
        ("a b c d e f g h i j k l", "a b c d e f g h i j k l m"),
    ],
)
def test_same_answers_match(reference, answer):
    assert fuzzy_match(reference, answer)


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("iron", "oak"),
        ("iron", "iron or oak"),
        ("iron", ""),
        ("", ""),
        ("B", "C"),
        ("B", "iron B"),
        ("B", "a"),
        ("(B) iron", "(C) iron"),
        ("(B) iron", "(B) oak"),
        ("3 V", "-3 V"),
        ("28", "28%"),
        ("1.5 mol", "15 mol"),
        ("the cell divides into 2 parts after a long rest", "the cell divides into 4 parts after a long rest"),
        ("acid to base", "base to acid"),
        (
            "it is not the rate of the cell that the salt will change in it",
            "it is the rate of the cell that the salt will change in it",
        ),
    ],
)
def test_different_answers_do_not(reference, answer):
    assert not fuzzy_match(reference, answer)


@given(words)
def test_every_answer_matches_itself(tokens):
    assert fuzzy_match(" ".join(tokens), " ".join(tokens).upper())


@given(words, words)
def test_similarity_is_one_only_for_equal_tokens(left, right):
    assert 0.0 <= token_similarity(left, right) <= 1.0
    assert (token_similarity(left, right) == 1.0) is (left == right)


@given(words, st.integers(0, 999), st.integers(0, 999))
def test_a_different_number_never_matches(tokens, left, right):
    text = " ".join(tokens * 5)
    assert fuzzy_match(f"{text} {left}", f"{text} {right}") is (left == right)


def test_science_problems_take_the_box_or_the_whole_text():
    problem = Problem.build("science", "test", [Message(role="user", content="?")], {"answer": "iron"})
    with MathVerifier() as math:
        assert verify_reasoning(problem, r"It is \boxed{iron}", math).passed
        assert verify_reasoning(problem, "iron", math).passed
        assert not verify_reasoning(problem, r"iron \boxed{oak}", math).passed
        assert not verify_reasoning(problem, r"\boxed{iron", math).passed
        empty = problem.model_copy(update={"ground_truth": {"answer": " "}})
        assert verify_reasoning(empty, "iron", math).kind is VerdictKind.UNSCORABLE
