import json
import math
import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.errors import LineageError
from rufus_core.lineage import canonical_json, fingerprint

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
CONFIGS = st.dictionaries(st.text(), JSON, max_size=5)


def reversed_keys(value):
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(list(value))}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


@given(CONFIGS)
def test_canonical_json_reads_back_as_the_value(value):
    assert json.loads(canonical_json(value)) == value


@given(CONFIGS, st.dictionaries(st.text(), st.text(), max_size=3))
def test_a_fingerprint_does_not_depend_on_the_order_of_keys(config, digests):
    assert fingerprint("k", "1", config, digests) == fingerprint(
        "k", "1", reversed_keys(config), reversed_keys(digests)
    )


def test_each_part_of_the_identity_counts():
    base = ("training", "1", {"lr": 1.0}, {"policy": "aa"})
    others = [
        ("scores", "1", {"lr": 1.0}, {"policy": "aa"}),
        ("training", "2", {"lr": 1.0}, {"policy": "aa"}),
        ("training", "1", {"lr": 1}, {"policy": "aa"}),
        ("training", "1", {"lr": 1.0}, {"policy": "ab"}),
        ("training", "1", {"lr": 1.0}, {"reference": "aa"}),
    ]
    assert len({fingerprint(*parts) for parts in [base, *others]}) == 6


def test_a_tuple_is_spelt_as_a_list():
    assert canonical_json({"betas": (0.9, 0.98)}) == '{"betas":[0.9,0.98]}'


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, {1}, b"x", Path("x"), object(), Colour.RED, np.float64(1.0), {1: 2}]
)
def test_what_is_not_json_is_refused_by_its_place(bad):
    with pytest.raises(LineageError) as caught:
        canonical_json({"optimizer": {"betas": [0.9, bad]}})
    assert caught.value.where == "$.optimizer.betas[1]"


def test_a_fingerprint_does_not_depend_on_the_hash_seed():
    program = (
        "from rufus_core.lineage import fingerprint;"
        "print(fingerprint('k', '1', dict.fromkeys({'a', 'b', 'c', 'd'}, 1),"
        " dict.fromkeys({'x', 'y', 'z', 'policy'}, 'aa')))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(printed) == 1
