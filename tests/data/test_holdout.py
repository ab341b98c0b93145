"""Three-way splits: disjoint, deterministic, never silently short."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.holdout import share_splits, split_of, take_splits
from rufus_core.errors import DataError
from rufus_core.types import Message, Problem, Split


def problems(count: int, start: int = 0) -> list[Problem]:
    return [
        Problem.build("f", "mine", [Message(role="user", content=str(i))], {"answer": i})
        for i in range(start, start + count)
    ]


def ids(splits: dict[Split, list[Problem]]) -> dict[Split, list[str]]:
    return {name: [p.id for p in found] for name, found in splits.items()}


def sizes(splits: dict[Split, list[Problem]]) -> tuple[int, int, int]:
    return len(splits["train"]), len(splits["validation"]), len(splits["heldout"])


def test_shares_of_the_buckets() -> None:
    counts = Counter(split_of(p.id, seed=3) for p in problems(4000))
    assert counts["heldout"] / 4000 == pytest.approx(0.20, abs=0.02)
    assert counts["validation"] / 4000 == pytest.approx(0.08, abs=0.02)


def test_the_seed_changes_the_split_and_nothing_else_does() -> None:
    made = [p.id for p in problems(200)]
    assert [split_of(i, 1) for i in made] == [split_of(i, 1) for i in made] != [split_of(i, 2) for i in made]


def test_a_stream_is_read_until_all_splits_are_full() -> None:
    read = 0

    def endless() -> Iterator[Problem]:
        nonlocal read
        while True:
            read += 1
            yield problems(1, start=read)[0]

    splits = take_splits(endless(), 50, 5, 10, seed=0)
    assert sizes(splits) == (50, 5, 10)
    assert read < 300
    assert all(split_of(p.id, 0) == name for name, found in splits.items() for p in found)


def test_no_train_count_takes_the_whole_stream() -> None:
    made = problems(500)
    splits = take_splits(made, None, 5, 10, seed=0)
    assert [p.id for p in splits["train"]] == [p.id for p in made if split_of(p.id, 0) == "train"]


def test_repeated_problems_are_taken_once() -> None:
    made = problems(300)
    assert ids(take_splits([*made, *made], None, 5, 10, seed=0)) == ids(take_splits(made, None, 5, 10, seed=0))


def test_a_split_that_cannot_be_filled_says_what_was_found() -> None:
    with pytest.raises(DataError, match=r"heldout split needs 240 problems, \d+ of 100 found"):
        take_splits(problems(100), 10, 2, 240, seed=0)
    with pytest.raises(DataError, match="train split needs 1000"):
        take_splits(problems(100), 1000, 2, 2, seed=0)


def test_splits_of_size_zero_read_nothing_for_them() -> None:
    assert sizes(take_splits(problems(100), 20, 0, 0, seed=0)) == (20, 0, 0)
    assert sizes(take_splits(iter(()), 0, 0, 0, seed=0)) == (0, 0, 0)


@given(st.integers(3, 120), st.integers(0, 20), st.integers(0, 40), st.integers(0, 5))
def test_a_file_is_shared_out_without_overlap_or_loss(count: int, validation: int, heldout: int, seed: int) -> None:
    splits = share_splits(problems(count), None, validation, heldout, seed)
    everything = [p.id for found in splits.values() for p in found]
    assert len(everything) == len(set(everything)) == count
    num_train, num_validation, num_heldout = sizes(splits)
    assert min(heldout, 1) <= num_heldout <= min(heldout, max(1, count // 5))
    assert min(validation, 1) <= num_validation <= validation
    assert num_train >= 1


def test_a_large_file_gives_exactly_what_is_asked_and_trains_on_the_rest() -> None:
    assert sizes(share_splits(problems(1319), None, 64, 240, seed=0)) == (1319 - 304, 64, 240)
    assert sizes(share_splits(problems(1319), 100, 64, 240, seed=0)) == (100, 64, 240)


def test_a_small_file_gives_up_a_fifth() -> None:
    assert sizes(share_splits(problems(50), None, 64, 240, seed=0)) == (36, 4, 10)
    assert sizes(share_splits(problems(3), None, 64, 240, seed=0)) == (1, 1, 1)


def test_the_order_of_a_file_does_not_matter() -> None:
    made = problems(80)
    shuffled = random.Random(1).sample(made, len(made))
    assert ids(share_splits(made, None, 5, 10, seed=0)) == ids(share_splits(shuffled, None, 5, 10, seed=0))


def test_files_that_are_too_small() -> None:
    with pytest.raises(DataError, match="2 distinct problems"):
        share_splits(problems(2) * 3, None, 1, 1, seed=0)
    with pytest.raises(DataError, match="40 training problems are asked for; 50 distinct problems leave 36"):
        share_splits(problems(50), 40, 64, 240, seed=0)
