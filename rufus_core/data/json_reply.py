"""JSON objects in what a model replied, which may have a fence or words around them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NoReturn

from rufus_core.types import Json

_OBJECT = re.compile(r'\{\s*["}]')
_MOST_FAILURES = 1000  # each costs as much as the reply is long


def objects_in(reply: str) -> Iterator[tuple[str, dict[str, Json]]]:
    """The outermost objects and their texts, in order.

    Raises ValueError (or RecursionError) for what no JSON holds, for a key that an object has twice, and for a reply
    full of what only begins like an object.
    """
    decoder = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_distinct)
    place = failures = 0
    while begin := _OBJECT.search(reply, place):
        try:
            value, place = decoder.raw_decode(reply, begin.start())
        except json.JSONDecodeError as error:
            failures += 1
            if failures > _MOST_FAILURES:
                raise ValueError("too much that only begins like an object") from error
            place = begin.start() + 1
        else:
            yield reply[begin.start() : place], value


def read_object(reply: str) -> dict[str, Json]:
    """The reply's only object. Raises ValueError where there isn't exactly one."""
    try:
        found = [value for _, value in objects_in(reply)]
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if len(found) != 1:
        raise ValueError(f"{len(found)} JSON objects")
    return found[0]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _distinct(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found
