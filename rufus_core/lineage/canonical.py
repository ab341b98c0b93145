"""Canonical JSON and fingerprints: the identity of a step, known before it runs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

from rufus_core.errors import LineageError
from rufus_core.types import Json


def canonical_json(value: Json) -> str:
    """The one spelling of a JSON value: sorted keys, no spaces, ASCII. A tuple is spelt as a list.

    Raises:
        LineageError: for anything JSON can't say exactly (NaN, infinity, sets, paths, enum members, NumPy scalars,
            keys that are not strings), naming its place inside the value.
    """
    _check(value, "$")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def with_seed(config: Mapping[str, Json], seed: int | None) -> dict[str, Json]:
    """A step's settings as its fingerprint covers them: the seed is one of them."""
    return {**config, "seed": seed}


def fingerprint(kind: str, version: str, config: Mapping[str, Json], input_digests: Mapping[str, str]) -> str:
    """SHA-256 (64 hex digits) of what decides a step's result.

    Args:
        kind: the kind of artifact it makes.
        version: the declared version of the implementation.
        config: resolved configuration `with_seed`, placement left out (hosts, paths, node counts, endpoints, retries).
        input_digests: digest of each input, by role.
    """
    identity = {"kind": kind, "version": version, "config": dict(config), "inputs": dict(input_digests)}
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


def _check(value: Json, place: str) -> None:
    # Exact types: a subclass (an enum, a NumPy scalar) may print differently from one release to the next.
    if value is None or type(value) in (bool, int, str):
        return
    if type(value) is float:
        if not math.isfinite(value):
            raise LineageError(f"{value} has no canonical JSON form", where=place)
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            _check(item, f"{place}[{index}]")
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise LineageError(f"key {key!r} is a {type(key).__name__}, not a string", where=place)
            _check(item, f"{place}.{key}")
    else:
        raise LineageError(f"a {type(value).__name__} has no canonical JSON form", where=place)
