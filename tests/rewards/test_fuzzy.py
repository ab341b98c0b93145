"""Fuzzy string match for science answers (RRL-R1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.rewards.fuzzy import fuzzy_match, token_similarity
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.reasoning import verify_reasoning
from rufus_core.types import Message, Problem, VerdictKind

LONG = "when the salt is put in the cell and the cell is left to rest in the cold for a day and a night"
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
        ("B", "B. vitamin C"),
        ("\u2264 5", "<= 5"),
        ("-5", "- 5"),
        ("Fe^{2+}", "Fe\u00b2\u207a"),
        ("A -> 5 B", "A => 5 B"),
        ("(B) iron", "B"),
        ("(B) iron", "iron"),
        ("28 %", "28%"),
        ("the rate of the reaction doubles when the acid is hot", "rate of reaction doubles when acid is hot"),
        ("a b c d e f g h i j k l", "a b c d e f g h i j k l m"),
        ("1000 m", "1 km"),
        ("5 km/h", "5 km / h"),
        ("9.8 m/s^2", "9.8 m/s\u00b2"),
        ("9.8 m/s^2", "9.8 m s^{-2}"),
        ("1.5e3 J", "1.5 kJ"),
        ("3 \u00d7 10^8 m/s", r"3 \times 10^{8} m/s"),
        ("25 \u00b0C", "25 \u00b0C"),
        ("it doesn't dissolve", "it does not dissolve"),
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
        ("5 mW", "5 MW"),
        ("5 V", "5"),
        ("5 V", "5 mV"),
        ("5 V", "5 A"),
        ("1000 m", "1 m"),
        ("1 km", "1000"),
        ("10^2", "102"),
        ("m\u00b2", "m"),
        ("1.5 kJ", "1.5 kJ or 2 kJ"),
        ("B", "A, B, C, D"),
        ("B", "A or B"),
        ("B", "(B) or (C)"),
        ("B", "B) C)"),
        ("B", "(B), (C)"),
        ("(B) iron", "(B) iron or (C) oak"),
        ("5", "< 5"),
        ("5", ">5"),
        ("< 5", "> 5"),
        ("<= 5", "< 5"),
        ("5", "\u00b15"),
        ("5", "- 5"),
        ("x = 5", "x = - 5"),
        ("Fe^{2+}", "Fe^{2-}"),
        ("Na+", "Na-"),
        ("B", "not B"),
        ("(B) iron", "(A) oak (B) iron"),
        ("iron", "iron, oak, salt"),
        ("iron", "not iron"),
        ("it dissolves", "it doesn't dissolve"),
        ("it can dissolve", "it can't dissolve"),
        (f"the rate of the reaction will increase {LONG}", f"the rate of the reaction will decrease {LONG}"),
        (f"from the left cell to the right cell {LONG}", f"from the right cell to the left cell {LONG}"),
        (f"it runs at 5 mW {LONG}", f"it runs at 5 MW {LONG}"),
        (f"it is acid {LONG}", f"it is never acid {LONG}"),
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
