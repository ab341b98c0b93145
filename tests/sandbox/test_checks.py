"""Asserts are cut into what runs inside and what is decided outside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.sandbox.candidate import plain
from rufus_core.sandbox.checks import parse_check

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "source", "expected"),
    [
        ("assert f(2) == 5", "f(2)", 5),
        ("assert 5 == f(2)", "f(2)", 5),
        ("assert (f(2)) == (5, -1)", "f(2)", (5, -1)),
        ("assert f(2) is None", "f(2)", None),
        ("assert f(2) == [1, {'a': (2.5,)}], 'message'", "f(2)", [1, {"a": (2.5,)}]),
        ("assert Solution().f([1]) == 'x'", "Solution().f([1])", "x"),
    ],
)
def test_the_expected_literal_stays_outside(text, source, expected):
    check = parse_check(text)
    assert (check.source, check.is_value, check.expected) == (source, True, expected)


@pytest.mark.parametrize(
    "text",
    [
        "assert abs(f(2) - 5) < 1",
        "assert f(1) == g(1)",
        "assert len([1]) == 1",
        "x = f(1)\nassert x == 2",
        "assert f(1)",
    ],
)
def test_other_statements_run_inside_and_need_the_nonce(text):
    check = parse_check(text)
    assert not check.is_value
    assert check.passes("p secret", "secret")
    assert not check.passes("p guess", "secret")
    assert not check.passes("v True", "secret")


@given(values)
def test_a_value_passes_its_own_literal_and_no_other(value):
    check = parse_check(f"assert f() == {value!r}")
    assert check.passes("v " + ascii(plain(value)), "")
    assert not check.passes("v " + ascii([plain(value), "other"]), "")


@pytest.mark.parametrize("line", ["", "v", "v f(", "v __import__('os')", "e ValueError", "v nan", "p nonce"])
def test_what_is_no_plain_value_fails(line):
    assert not parse_check("assert f() == 1").passes(line, "nonce")


def test_overridden_comparison_and_repr_do_not_reach_the_value():
    class Liar(int):
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

        def __repr__(self):
            return "5"

        def __add__(self, other):
            return 5

    assert ascii(plain([Liar(7)])) == "[7]"
    with pytest.raises(TypeError):
        plain(object())


def test_a_metaclass_that_equals_every_type_is_no_plain_value():
    class Meta(type):
        def __eq__(cls, other):
            return True

        def __hash__(cls):
            return 0

    class Liar(metaclass=Meta):
        pass

    with pytest.raises(TypeError):
        plain(Liar())
