"""Asserts are cut into what runs inside and what is decided outside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.sandbox.checks import parse_check, parse_setup
from rufus_core.sandbox.values import count_members, decode, encode

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.sets(st.integers() | st.text())
        | st.frozensets(st.integers())
    ),
    max_leaves=8,
)


def told(value):
    return "v " + encode(value).hex()


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
    assert (check.kind, check.source, check.expected, check.proof) == ("value", source, expected, "compared")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("assert abs(f(2) - 5) < 1", ("f",)),
        ("assert f(1) == g(1)", ("f", "g")),
        ("x = f(1)\nassert x == 2", ("f",)),
        ("assert f(1)", ("f",)),
        ("assert int(f(5, 3)) == 35", ("f",)),
        ("assert math.isclose(f(2), 5) == True", ("f",)),  # the module is the interpreter's own
        ("assert sum(10, 15) == 6", ("sum",)),  # the program's, as there is nothing else that it could define
    ],
)
def test_other_statements_are_the_referees(text, names):
    check = parse_check(text)
    assert (check.kind, check.names, check.proof) == ("statement", names, "referee")
    assert check.passes("p")
    assert not check.passes(told(True))


@pytest.mark.parametrize(
    ("setup", "text", "proof"),
    [
        ("class Node: pass", "assert f(Node()) == 1", "helpers"),
        ("class Node: pass", "assert f(2) == 1", "compared"),
        ("def close(a, b): return abs(a - b) < 1", "assert close(f(2), 5)", "helpers"),
        ("from math import isclose", "assert isclose(f(2), 5) == True", "referee"),
        ("root = Node(1)", "assert f(root) == 1", "helpers"),
        ("", "class T:\n    v = 1\nassert f(T()) == 1", "helpers"),
    ],
)
def test_helper_code_of_a_record_is_told(setup, text, proof):
    assert parse_check(text, parse_setup(setup)).proof == proof


@given(values)
def test_plain_values_survive_the_way(value):
    again = decode(encode(value), max_members=count_members(value))
    assert (type(again), again) == (type(value), value)


@given(values)
def test_a_value_passes_its_own_literal_and_no_other(value):
    check = parse_check(f"assert f() == {value!r}") if "inf" not in repr(value) else None
    if check is not None and check.kind == "value":
        assert check.passes(told(value))
        assert not check.passes(told([value, "other"]))


@given(st.binary())
def test_arbitrary_bytes_are_a_value_or_refused(data):
    try:
        value = decode(data)
    except (ValueError, TypeError, ArithmeticError):
        return
    assert decode(encode(value)) == value or value != value


@pytest.mark.parametrize(
    "line", ["", "v", "v f(", "v zz", "v 69", "e ValueError", "p", "v " + encode(float("nan")).hex()]
)
def test_what_is_no_such_value_fails(line):
    assert not parse_check("assert f() == 1").passes(line)


def test_is_asks_for_the_type_too():
    assert parse_check("assert f() is True").passes(told(True))
    assert not parse_check("assert f() is True").passes(told(1))


def test_a_set_of_equal_hashes_is_not_built_outside():
    modulus = (1 << 61) - 1  # the hash of an int is its remainder
    hostile = [n * modulus for n in range(20_000)]
    data = b"S" + len(hostile).to_bytes(4, "big") + encode(hostile)[5:]
    assert not parse_check("assert f() == {1, 2}").passes("v " + data.hex())


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

    assert decode(encode([Liar(7)])) == [7]
    with pytest.raises(TypeError):
        encode(object())


def test_a_class_that_claims_to_be_another_is_no_plain_value():
    class Meta(type):
        def __eq__(cls, other):
            return True

        def __hash__(cls):
            return 0

    class Liar(metaclass=Meta):
        @property
        def __class__(self):
            return int

    with pytest.raises(TypeError):
        encode(Liar())
