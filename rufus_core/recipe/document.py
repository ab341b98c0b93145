"""YAML documents as trees that remember where each value was written, and how one overlays another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import yaml

from rufus_core.errors import ConfigError
from rufus_core.types import Json

REPLACE_TAG = "!replace"


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it was written. `replace` is set by the tag `!replace` on a mapping."""

    value: dict[str, Node] | list[Node] | str | int | float | bool | None
    where: str
    replace: bool = False


class _CoreLoader(yaml.SafeLoader):
    """YAML 1.2's core scalars: `1e-6` is a number; `on`, `no` and dates are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own interface


for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*)$", list("-+0123456789")),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
):
    _CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def parse(text: str, where: Callable[[int], str]) -> Node:
    """The document's tree. `where` names the place of a line, counted from 1.

    Raises:
        ConfigError: the text is not YAML, a key is repeated or is not text, or a number is too large.
    """
    try:
        loader = _CoreLoader(text)
        root = loader.get_single_node()
        return Node(None, where(1)) if root is None else _convert(loader, root, where, where(1))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"not valid YAML: {error.problem}", where=where(line)) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {' '.join(str(error).split())}", where=where(1)) from None
    except RecursionError:
        raise ConfigError("nested too deeply", where=where(1)) from None


def _convert(loader: _CoreLoader, node: yaml.Node, where: Callable[[int], str], place: str) -> Node:
    if isinstance(node, yaml.MappingNode):
        if node.tag not in (loader.DEFAULT_MAPPING_TAG, REPLACE_TAG):
            raise ConfigError(f"unknown tag {node.tag!r}", where=place, hint=f"the only tag is {REPLACE_TAG}")
        entries: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key_place = where(key_node.start_mark.line + 1)
            key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise ConfigError(f"the key {key!r} is not text", where=key_place, hint="put it in quotes")
            if key in entries:
                raise ConfigError(f"the key {key!r} is given twice", where=key_place, hint=f"also {entries[key].where}")
            entries[key] = _convert(loader, value_node, where, key_place)
        return Node(entries, place, replace=node.tag == REPLACE_TAG)
    if node.tag == REPLACE_TAG:
        raise ConfigError(f"{REPLACE_TAG} marks a mapping", where=place, hint="lists and scalars replace anyway")
    if isinstance(node, yaml.SequenceNode):
        return Node([_convert(loader, item, where, where(item.start_mark.line + 1)) for item in node.value], place)
    value = loader.construct_object(node)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"the number {node.value} is too large", where=place)
    return Node(value, place)


def merge(base: Node, overlay: Node) -> Node:
    """`overlay` on top of `base`: mappings merge; lists, scalars, null and a mapping tagged `!replace` replace."""
    if overlay.replace or not (isinstance(base.value, dict) and isinstance(overlay.value, dict)):
        return overlay
    merged = dict(base.value)
    for key, child in overlay.value.items():
        merged[key] = merge(merged[key], child) if key in merged else child
    return replace(base, value=merged)


def merge_at(base: Node, path: Sequence[str], overlay: Node) -> Node:
    """`merge` below a path of keys and list indices; missing mappings on the way are made.

    Raises:
        ConfigError: the path leads through a scalar, or out of a list.
    """
    if not path:
        return merge(base, overlay)
    key, rest = path[0], path[1:]
    if isinstance(base.value, list):
        if not (key.isdecimal() and int(key) < len(base.value)):
            raise ConfigError(
                f"no entry {key!r} in a list", where=overlay.where, hint=f"it has {len(base.value)}, counted from 0"
            )
        items = list(base.value)
        items[int(key)] = merge_at(items[int(key)], rest, overlay)
        return replace(base, value=items)
    if base.value is not None and not isinstance(base.value, dict):
        raise ConfigError(f"{base.value!r} is a single value and has no {key!r}", where=overlay.where)
    children = base.value or {}
    child = merge_at(children.get(key, Node(None, overlay.where)), rest, overlay)
    return replace(base, value={**children, key: child}, where=base.where if base.value is not None else overlay.where)


def plain(node: Node) -> Json:
    """The tree as plain JSON values."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def descend(node: Node, path: Sequence[str | int]) -> tuple[list[str], Node]:
    """As far down `path` as the tree goes: the steps taken and the node reached. Unknown steps are passed over."""
    taken: list[str] = []
    for step in path:
        if isinstance(node.value, dict) and step in node.value:
            node = node.value[str(step)]
        elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
        else:
            continue
        taken.append(str(step))
    return taken, node
