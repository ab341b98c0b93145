"""Trees of YAML: places, scalars, merging."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.errors import ConfigError
from rufus_core.recipe.document import Node, descend, merge, merge_at, parse, plain


def tree(text: str, name: str = "f") -> Node:
    return parse(text, lambda line: f"{name}:{line}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6), ("1.0e-6", 1e-6), ("5E3", 5000.0), ("-.5", -0.5), ("3", 3), ("131_072", 131072), ("-7", -7),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        ("on", "on"), ("no", "no"), ("2026-09-24", "2026-09-24"), ("1:30", "1:30"), ("010", "010"), ("'8'", "8"),
        ("10417ac", "10417ac"), ("89eb108", "89eb108"), (".nan", ".nan"), (".inf", ".inf"),
        ("[1, 1e-3, a]", [1, 0.001, "a"]), ("{a: {b: 1}}", {"a": {"b": 1}}),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    parsed = plain(tree(text))
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1", 1),
        ("a: 1\nb: {c: 2\n", 3),
        ("a: 1\nb: 2\na: 3", 3),
        ("a: 1\n2: 3", 2),
        ("a:\n  ? [x]\n  : 1", 2),
        ("a: 1\nb: !replace [1]", 2),
        ("a: 1\nb: !other {c: 1}", 2),
        ("a: 1\nb: !!python/name:os.system x", 2),
        ("a: 1\nb: 1e999", 2),
        ("a: *b", 1),
        ("a: \x07", 1),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        tree(text)
    assert caught.value.where == f"f:{line}"
    assert caught.value.exit_code == 2


def test_a_document_that_holds_itself_or_is_too_deep_is_refused() -> None:
    for text in ("&a [*a]", "[" * 5000):
        with pytest.raises(ConfigError, match="too deeply"):
            tree(text)


def test_every_value_knows_its_line() -> None:
    root = tree("a:\n  b: 1\n  c:\n    - x\n    - {d: 2}\n")
    assert descend(root, ["a"])[1].where == "f:1"
    assert descend(root, ["a", "b"])[1].where == "f:2"
    assert descend(root, ["a", "c", 1, "d"])[1].where == "f:5"
    assert descend(root, ["a", "tag", "c"])[0] == ["a", "c"]


def merged(base: str, overlay: str) -> object:
    return plain(merge(tree(base), tree(overlay)))


def test_mappings_merge_while_lists_scalars_and_null_replace() -> None:
    assert merged("a: {x: 1, y: 2}", "a: {y: 3}") == {"a": {"x": 1, "y": 3}}
    assert merged("a: [1, 2, 3]", "a: [4]") == {"a": [4]}
    assert merged("a: {x: 1}", "a: null") == {"a": None}
    assert merged("a: {x: 1}", "a: 5") == {"a": 5}
    assert merged("a: null", "a: {x: 1}") == {"a": {"x": 1}}
    assert merged("a: {x: 1}", "a: {}") == {"a": {"x": 1}}
    assert merged("a: 1", "b: 2") == {"a": 1, "b": 2}


def test_replace_drops_what_was_there_at_its_level_only() -> None:
    assert merged("a: {x: {p: 1}, y: 2}", "a: !replace {z: 3}") == {"a": {"z": 3}}
    assert merged("a: {x: {p: 1}, y: 2}", "a: {x: !replace {q: 1}}") == {"a": {"x": {"q": 1}, "y": 2}}
    assert merged("a: {x: 1}", "a: !replace {}") == {"a": {}}


def test_a_merged_value_keeps_the_place_of_its_own_file() -> None:
    both = merge(tree("a: {x: 1}\nb: 2", "base"), tree("\n\na: {y: 3}", "over"))
    assert descend(both, ["a", "x"])[1].where == "base:1"
    assert descend(both, ["a", "y"])[1].where == "over:3"


def test_merge_at_goes_through_lists_by_index_and_makes_mappings() -> None:
    root = tree("a: [{k: 1, l: 2}, {k: 3}]\nb: null")
    value = Node(9, "arg")
    assert plain(merge_at(root, ["a", "1", "k"], value))["a"] == [{"k": 1, "l": 2}, {"k": 9}]
    assert plain(merge_at(root, ["b", "c", "d"], value))["b"] == {"c": {"d": 9}}
    assert plain(merge_at(root, ["new"], value))["new"] == 9


@pytest.mark.parametrize("path", [["a", "2"], ["a", "-1"], ["a", "x"], ["b", "c"], ["a", "0", "k", "z"]])
def test_merge_at_refuses_a_path_that_leads_nowhere(path: list[str]) -> None:
    root = tree("a: [{k: 1}, {k: 3}]\nb: 2")
    with pytest.raises(ConfigError) as caught:
        merge_at(root, path, Node(9, "--set here"))
    assert caught.value.where == "--set here"


KEYS = st.sampled_from(["a", "b", "c"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.lists(st.integers(0, 3), max_size=2))
TREES = st.recursive(SCALARS, lambda children: st.dictionaries(KEYS, children, max_size=3), max_leaves=8)
MAPPINGS = st.dictionaries(KEYS, TREES, max_size=3)


def node(value: object) -> Node:
    if isinstance(value, dict):
        return Node({key: node(child) for key, child in value.items()}, "-")
    return Node([node(item) for item in value], "-") if isinstance(value, list) else Node(value, "-")  # type: ignore[arg-type]


@given(MAPPINGS)
def test_merging_nothing_or_itself_changes_nothing(value: dict[str, object]) -> None:
    assert plain(merge(node(value), node({}))) == value
    assert plain(merge(node({}), node(value))) == value
    assert plain(merge(node(value), node(value))) == value


@given(MAPPINGS, MAPPINGS)
def test_every_leaf_of_an_overlay_arrives(base: dict[str, object], overlay: dict[str, object]) -> None:
    def contained(part: object, whole: object) -> bool:
        if isinstance(part, dict) and part:
            return isinstance(whole, dict) and all(contained(v, whole.get(k)) for k, v in part.items())
        return isinstance(whole, dict) if part == {} else part == whole

    result = plain(merge(node(base), node(overlay)))
    assert contained(overlay, result)
    assert set(result) == set(base) | set(overlay)
