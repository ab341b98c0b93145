"""Rollouts on disk: what is written is read, and equal rollouts are equal bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_core.errors import LineageError
from rufus_core.rollout.stored import (
    RolloutFacts,
    StoredRollout,
    read_facts,
    read_rollout,
    read_rollouts,
    step_file,
    steps_in,
    write_rollouts,
)
from rufus_core.types import Fate, Message, Termination, ToolCall, VerdictKind

FLOAT32 = st.floats(width=32)
COUNT = st.integers(0, 2**31 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=st.text(),
    reasoning=st.none() | st.text(),
    tool_calls=st.lists(
        st.builds(ToolCall, name=st.text(), arguments=st.dictionaries(st.text(), JSON, max_size=2)), max_size=2
    ).map(tuple),
)


@st.composite
def rollouts(draw: st.DrawFn) -> StoredRollout:
    num_tokens = draw(st.integers(0, 5))

    def each_token(values: st.SearchStrategy[Any]) -> Any:
        return st.lists(values, min_size=num_tokens, max_size=num_tokens)

    routed = None
    if num_tokens and draw(st.booleans()):
        shape = (num_tokens - 1, draw(st.integers(1, 3)), draw(st.integers(1, 2)))
        routed = np.array(draw(st.lists(COUNT, min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))), np.int32)
        routed = routed.reshape(shape)
    return draw(
        st.builds(
            StoredRollout,
            **dict.fromkeys(("step", "group", "round", "sample_index"), COUNT),
            **dict.fromkeys(("problem_id", "family", "source", "why", "reason", "weight_version"), st.text()),
            **dict.fromkeys(("score", "reward"), st.floats()),
            advantage=st.none() | st.floats(),
            fate=st.sampled_from(Fate),
            verdict=st.sampled_from(VerdictKind),
            extracted=st.none() | st.text(),
            reward_parts=st.dictionaries(st.text(), st.floats(), max_size=3),
            termination=st.sampled_from(Termination),
            num_calls=COUNT,
            num_successful_calls=COUNT,
            num_malformed_calls=COUNT,
            num_response_tokens=COUNT,
            num_final_tokens=COUNT,
            messages=st.lists(MESSAGES, max_size=3).map(tuple),
            token_ids=each_token(COUNT),
            loss_mask=each_token(st.integers(0, 1)),
            logprobs=each_token(FLOAT32),
            routed_experts=st.just(routed),
        )
    )


def rollout(**changes: Any) -> StoredRollout:
    plain = StoredRollout(
        step=3,
        group=0,
        round=1,
        sample_index=0,
        problem_id="0123456789abcdef",
        family="arithmetic",
        source="sums",
        fate=Fate.TRAINED,
        why="",
        score=1.0,
        reward=0.5,
        advantage=-0.25,
        verdict=VerdictKind.PASS,
        reason="",
        extracted="7",
        reward_parts={},
        termination=Termination.TASK_COMPLETE,
        num_calls=0,
        num_successful_calls=0,
        num_malformed_calls=0,
        num_response_tokens=2,
        num_final_tokens=1,
        weight_version="2",
        messages=(Message(role="user", content="3 + 4?"), Message(role="assistant", content="7")),
        token_ids=[5, 6, 7],
        loss_mask=[0, 1, 1],
        logprobs=[0.0, -0.5, -1.5],
    )
    return replace(plain, **changes)


def same(one: StoredRollout, other: StoredRollout) -> None:
    for each in fields(StoredRollout):
        value, expected = getattr(one, each.name), getattr(other, each.name)
        assert type(value) is type(expected), each.name
        np.testing.assert_equal(value, expected, each.name)  # NaN equals NaN; -0.0 is told from 0.0 below
        if isinstance(value, float):
            assert np.signbit(value) == np.signbit(expected)
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.shape) == (np.int32, expected.shape)


@given(st.lists(rollouts(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, written: list[StoredRollout]) -> None:
    folder = tmp_path_factory.mktemp("rollouts")
    one, other = step_file(folder, 12), step_file(folder, 13)
    write_rollouts(one, written)
    read = list(read_rollouts(one))
    assert len(read) == len(written)
    for got, expected in zip(read, written, strict=True):
        same(got, expected)
    for place, facts in enumerate(read_facts(one)):
        same(read_rollout(one, place), written[place])
        assert type(facts) is RolloutFacts
        for each in fields(RolloutFacts):
            np.testing.assert_equal(getattr(facts, each.name), getattr(written[place], each.name))
    write_rollouts(other, read)
    assert other.read_bytes() == one.read_bytes()
    assert steps_in(folder) == [12, 13]


def test_other_programs_can_read_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    routed = np.arange(8, dtype=np.int32).reshape(2, 2, 2)
    write_rollouts(path, [rollout(routed_experts=routed, reward_parts={"format": 1.0}), rollout(sample_index=1)])
    schema = pq.read_schema(path)
    types = {
        "token_ids": pa.list_(pa.field("element", pa.int32())),
        "loss_mask": pa.list_(pa.field("element", pa.bool_())),
        "logprobs": pa.list_(pa.field("element", pa.float32())),
        "routed_experts": pa.list_(pa.field("element", pa.int32())),
        "reward_parts": pa.map_(pa.string(), pa.float64()),
        "messages": pa.string(),
        "advantage": pa.float64(),
    }
    assert {name: schema.field(name).type for name in types} == types
    rows = pq.read_table(path).to_pylist()
    assert rows[0]["routed_experts"] == list(range(8))
    assert (rows[0]["routed_layers"], rows[0]["routed_top_k"]) == (2, 2)
    assert rows[1]["routed_experts"] is rows[1]["routed_layers"] is None
    codecs = pq.ParquetFile(path).metadata.row_group(0)
    assert {codecs.column(index).compression for index in range(codecs.num_columns)} == {"ZSTD"}


def test_one_of_many_is_read_from_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_rollouts(path, [rollout(group=number // 8, sample_index=number % 8) for number in range(200)])
    assert [read_rollout(path, place).id for place in (0, 63, 64, 199)] == ["3/0/0", "3/7/7", "3/8/0", "3/24/7"]
    for place in (-1, 200, 256):
        with pytest.raises(IndexError, match=f"there is no rollout {place} in a.parquet"):
            read_rollout(path, place)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss_mask": [0, 1]},
        {"logprobs": [0.0]},
        {"routed_experts": np.zeros((3, 2, 2), np.int32)},  # a row for each token: one too many
        {"routed_experts": np.zeros((2, 4), np.int32)},
    ],
)
def test_what_does_not_fit_its_tokens_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"rollout 3/0/0.*3 tokens"):
        write_rollouts(tmp_path / "a.parquet", [rollout(**changes)])


@pytest.mark.parametrize(
    "reads",
    [read_facts, lambda path: list(read_rollouts(path)), lambda path: read_rollout(path, 0)],
    ids=["facts", "all", "one"],
)
def test_rollouts_with_other_columns_are_told(tmp_path: Path, reads: Callable[[Path], object]) -> None:
    path = tmp_path / "a.parquet"
    write_rollouts(path, [rollout()])
    table = pq.read_table(path)
    for other in (table.drop_columns("num_calls"), table.append_column("mood", pa.array(["good"]))):
        pq.write_table(other, path)
        with pytest.raises(LineageError, match=r"a\.parquet: another version of Rufus-Air wrote these rollouts"):
            reads(path)


def test_damage_anywhere_is_told_if_it_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_rollouts(path, [rollout(sample_index=number) for number in range(80)])
    whole, rng, told = path.read_bytes(), random.Random(1), 0
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        for read in (read_facts, lambda path: list(read_rollouts(path)), lambda path: read_rollout(path, 70)):
            try:
                read(path)
            except LineageError:
                told += 1
    assert told > 60


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_rollouts(path, [rollout()])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(LineageError, match=r"a\.parquet: these rollouts can't be read"):
        read_facts(path)
