"""Outputs are compared line by line and token by token, exactly unless a record asks for a tolerance (CRL-R3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.rewards.outputs import difference

BIG = "7" * 4301  # more digits than Python turns into an int by default


@pytest.mark.parametrize(
    ("actual", "expected", "tolerance", "same"),
    [
        ("1 2\n", "1  2", None, True),
        ("1 2 \n\n", "1 2", None, True),
        ("\n1 2", "1 2", None, True),
        ("1\r\n2\r\n", "1\n2\n", None, True),
        ("1\n2", "1 2", None, False),
        ("1\n\n2", "1\n2", None, False),
        ("1", "1.0", None, False),
        ("1.0000001", "1", 1e-6, True),
        ("1.1", "1", 1e-6, False),
        ("1_0", "10", 1e-6, False),
        ("\uff11\uff10", "10", 1e-6, False),
        ("\u0661\u0660", "10", 1e-6, False),
        ("1e3", "1000", 1e-6, True),
        ("nan", "nan", None, True),
        ("nan", "nan", 1e-6, True),
        ("nan", "1", 0.9, False),
        ("inf", "1", 0.9, False),
        ("x", "1", 1e-6, False),
        ("", "", None, True),
        (" \n", "", None, True),
        ("1 2", "1", None, False),
        ("1", "1 2", None, False),
        ("YES", "yes", None, False),
        (BIG, BIG, None, True),
        (BIG + "\n", BIG, 1e-6, True),
        (BIG[:-1] + "8", BIG, 1e-6, False),
    ],
)
def test_equal_or_not(actual, expected, tolerance, same):
    assert (difference(actual, expected, tolerance) == "") is same


@pytest.mark.parametrize(
    ("actual", "expected", "told"),
    [
        ("1\n2 4", "1\n2 3", "line 2: expected '3', got '4'"),
        ("1 2", "1", "line 1: expected 1 word, got 2"),
        ("1", "1\n2\n3", "expected 3 lines, got 1"),
        ("\n", "1\n2", "no output"),
        ("é\u2028", "e", r"line 1: expected 'e', got '\xe9'"),
        ("b" * 50, "a" * 41, f"line 1: expected '{'a' * 40}...', got '{'b' * 40}...'"),
    ],
)
def test_the_first_difference_is_told(actual, expected, told):
    assert difference(actual, expected) == told


outputs = st.text(alphabet="12 .\n\t\r-e_nax", max_size=30)


@given(outputs, outputs, st.sampled_from([None, 1e-6, 0.5]))
def test_symmetric_and_a_line(actual, expected, tolerance):
    told = difference(actual, expected, tolerance)
    assert "\n" not in told
    assert len(told) < 160
    if tolerance is None:
        assert bool(told) == bool(difference(expected, actual))
        assert bool(told) == (
            [line.split() for line in actual.strip().split("\n")]
            != [line.split() for line in expected.strip().split("\n")]
        )
    elif told:
        assert difference(actual, expected)  # a tolerance never tells apart what is equal without one


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_gets_an_answer(actual, expected):
    assert difference(actual, actual) == ""
    assert "\n" not in difference(actual, expected, 1e-6)
