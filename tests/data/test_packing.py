"""Packing (SFT-06, SLM-02, SLM-04)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.packing import IGNORE, PackedRow, pack
from rufus_core.errors import DataError

sequences = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1)), min_size=1, max_size=6).map(
        lambda pairs: ([token for token, _ in pairs], [bit for _, bit in pairs])
    ),
    min_size=1,
    max_size=5,
)


@given(st.lists(st.integers(1, 20), max_size=40), st.integers(20, 40))
def test_every_sequence_is_in_one_row_within_the_capacity_SLM_02(lengths: list[int], capacity: int) -> None:
    rows = pack(lengths, capacity)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in row) <= capacity for row in rows)
    assert rows == pack(lengths, capacity)


@given(st.lists(st.integers(1, 20), max_size=30), st.integers(20, 40), st.randoms(use_true_random=False))
def test_row_sizes_do_not_depend_on_the_order_of_the_sequences(lengths, capacity, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(lengths, len(lengths))

    def sizes(given_lengths: list[int]) -> list[list[int]]:
        return [[given_lengths[i] for i in row] for row in pack(given_lengths, capacity)]

    assert sizes(lengths) == sizes(shuffled)


@given(st.lists(st.integers(1, 20), max_size=40), st.integers(20, 40))
def test_pack_is_first_fit_decreasing(lengths: list[int], capacity: int) -> None:
    expected: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = (row for row in expected if sum(lengths[i] for i in row) + lengths[index] <= capacity)
        row = next(fits, None)
        if row is None:
            expected.append([index])
        else:
            row.append(index)
    assert pack(lengths, capacity) == expected


@pytest.mark.parametrize("lengths", [[5, 11], [0]])
def test_what_does_not_fit_is_refused_and_never_cut(lengths: list[int]) -> None:
    with pytest.raises(DataError, match="can't be packed"):
        pack(lengths, 10)


def test_a_row_in_full_SLM_04() -> None:
    row = PackedRow.build([([7, 8, 9], [1, 0, 1]), ([5, 6], [0, 1])])
    assert row.ids_T.tolist() == [7, 8, 9, 5, 6]
    assert row.positions_T.tolist() == [0, 1, 2, 0, 1]
    assert row.segments_T.tolist() == [0, 0, 0, 1, 1]
    assert row.labels_T.tolist() == [IGNORE, 9, IGNORE, 6, IGNORE]


@given(sequences)
def test_every_token_once_and_no_target_across_a_boundary(packed: list[tuple[list[int], list[int]]]) -> None:
    row = PackedRow.build(packed)
    assert len(row.ids_T) == sum(len(ids) for ids, _ in packed)
    rebuilt = [row.ids_T[row.segments_T == k].tolist() for k in range(len(packed))]
    assert rebuilt == [ids for ids, _ in packed]
    for k, (ids, mask) in enumerate(packed):
        inside = row.segments_T == k
        assert row.positions_T[inside].tolist() == list(range(len(ids)))
        # An id of 0 is a target like any other.
        assert row.labels_T[inside].tolist() == [
            token if bit else IGNORE for token, bit in zip(ids[1:], mask[1:], strict=True)
        ] + [IGNORE]
    assert (row.labels_T != IGNORE).sum() == sum(sum(mask[1:]) for _, mask in packed)


@given(sequences)
def test_targets_do_not_depend_on_neighbours(packed: list[tuple[list[int], list[int]]]) -> None:
    together = PackedRow.build(packed)
    alone = [PackedRow.build([sequence]) for sequence in packed]
    assert together.labels_T.tolist() == [label for row in alone for label in row.labels_T.tolist()]


@pytest.mark.parametrize("packed", [[([1, 2], [1])], [([], [])]])
def test_rows_that_cannot_be_built(packed: list[tuple[list[int], list[int]]]) -> None:
    with pytest.raises(DataError):
        PackedRow.build(packed)
