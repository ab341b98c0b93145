"""From a tree to settings: every fault is told with its place and the nearest known name."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rufus_core.errors import ConfigError
from rufus_core.recipe.document import Node, descend, plain

MAX_FAULTS_SHOWN = 5

Model = TypeVar("Model", bound=BaseModel)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint: the known name nearest to `name`, or all of them where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"


def validated(tree: Node, model: type[Model], whole: str) -> Model:
    """The tree as settings of this kind. `whole` names what the tree is of, for example "the recipe".

    Raises:
        ConfigError: an unknown key, a missing one or a wrong value; several are told at once.
    """
    faults = list(_unknown_keys(tree, model, (), whole))
    try:
        # Strict: "8" is no number and true is no count. JSON input, so that a list may fill a tuple.
        settings = model.model_validate_json(json.dumps(plain(tree), allow_nan=False), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        faults += [_fault(tree, detail, whole) for detail in details if detail["type"] != "extra_forbidden"]
        raise_faults(faults)
        raise
    raise_faults(faults)
    return settings


def raise_faults(faults: list[ConfigError]) -> None:
    """Nothing where there is none; a single fault as it is; several as one error that lists the first few."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        shown = [f"\n  {fault}" for fault in faults[:MAX_FAULTS_SHOWN]]
        hidden = len(faults) - len(shown)
        raise ConfigError(
            f"{len(faults)} faults in the configuration:{''.join(shown)}" + (f"\n  and {hidden} more" if hidden else "")
        )


def _unknown_keys(node: Node, annotation: Any, path: tuple[str, ...], whole: str) -> Iterator[ConfigError]:
    shape = _shape(annotation, node)
    if isinstance(node.value, list) and get_origin(shape) is tuple:
        for index, item in enumerate(node.value):
            yield from _unknown_keys(item, get_args(shape)[0], (*path, str(index)), whole)
    if not isinstance(node.value, dict):
        return
    if get_origin(shape) is dict:
        for key, child in node.value.items():
            yield from _unknown_keys(child, get_args(shape)[1], (*path, key), whole)
    elif isinstance(shape, type) and issubclass(shape, BaseModel):
        fields = shape.model_fields
        for key, child in node.value.items():
            if key in fields:
                yield from _unknown_keys(child, fields[key].annotation, (*path, key), whole)
            else:
                place = ".".join(path) or whole
                yield ConfigError(f"unknown key {key!r} in {place}", where=child.where, hint=nearest(key, fields))


def _shape(annotation: Any, node: Node) -> Any:
    """The part of an annotation that `node` fills: not None, and of a union of models the one with its `kind`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _shape(get_args(annotation)[0], node)
    if origin not in (Union, types.UnionType):
        return annotation
    choices = [choice for choice in get_args(annotation) if choice is not types.NoneType]
    if len(choices) == 1:
        return _shape(choices[0], node)
    kind = node.value.get("kind") if isinstance(node.value, dict) else None
    for choice in choices:
        fields = getattr(choice, "model_fields", {})
        if kind is not None and "kind" in fields and kind.value in get_args(fields["kind"].annotation):
            return choice
    return None


def _fault(tree: Node, detail: ErrorDetails, whole: str) -> ConfigError:
    taken, node = descend(tree, detail["loc"])
    path = ".".join(taken) or whole
    message = detail["msg"]
    if detail["type"] == "missing":
        return ConfigError(f"{path} has no {detail['loc'][-1]!r}", where=node.where, hint="it must be given")
    if detail["type"].startswith("union_tag"):
        return ConfigError(f"{path} has no kind 'sft' or 'rl'", where=node.where)
    if detail["type"] == "value_error":
        return ConfigError(f"{path}: {message.removeprefix('Value error, ')}", where=node.where)
    given = type(detail["input"]).__name__ if isinstance(detail["input"], dict | list) else repr(detail["input"])
    return ConfigError(f"{path}: {message[0].lower()}{message[1:]}, not {given}", where=node.where)
