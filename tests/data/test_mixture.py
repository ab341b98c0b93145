"""Mixing, ordering, deduplicating and reporting (MIX-02, MIX-03)."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.mixture import composition, deduplicate, epoch_order, mix
from rufus_core.errors import DataError
from rufus_core.types import Conversation, Message, ToolCall


def conversation(asked: str, answer: str, source: str = "mine", calls: tuple[ToolCall, ...] = ()) -> Conversation:
    messages = (Message(role="user", content=asked), Message(role="assistant", content=answer, tool_calls=calls))
    return Conversation(messages=messages, source=source, category="math")


@given(st.integers(0, 60), st.integers(0, 9), st.integers(0, 9))
def test_an_epoch_visits_everything_once_in_an_order_of_seed_and_epoch(num_items: int, seed: int, epoch: int) -> None:
    order = epoch_order(num_items, seed, epoch)
    assert sorted(order) == list(range(num_items))
    assert order == epoch_order(num_items, seed, epoch)


def test_orders_differ_by_seed_and_by_epoch() -> None:
    orders = [epoch_order(50, seed, epoch) for seed in range(3) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 9


def test_mix_takes_counts_by_seed() -> None:
    sources = {"a": list(range(100)), "b": list(range(100, 110))}
    mixed = mix(sources, {"a": 20}, seed=1)
    assert len(mixed) == len(set(mixed)) == 30
    assert mixed[20:] == sources["b"]
    assert mixed == mix(sources, {"a": 20}, seed=1) != mix(sources, {"a": 20}, seed=2)


def test_another_source_does_not_change_what_is_taken() -> None:
    items = list(range(100))
    alone = mix({"a": items}, {"a": 20}, seed=1)
    assert mix({"b": [], "a": items}, {"a": 20}, seed=1) == alone


@pytest.mark.parametrize(("counts", "what"), [({"a": 3}, "3 items .* 2 found"), ({"c": 1}, "no source 'c'")])
def test_mix_refuses_what_it_cannot_give(counts: dict[str, int | None], what: str) -> None:
    with pytest.raises(DataError, match=what):
        mix({"a": [1, 2]}, counts, seed=0)


def test_exact_duplicates_are_dropped_and_counted_by_source() -> None:
    counts: Counter[str] = Counter()
    records = [
        conversation("What is  1+1?", "Two."),
        conversation("what is 1+1?\n", "two.", source="other"),
        conversation("What is 1+1?", "Three."),
        conversation("What is 1+2?", "Two."),
    ]
    assert list(deduplicate(records, counts)) == [records[0], records[2], records[3]]
    assert counts == {"duplicates": 1, "duplicates/other": 1}


def test_final_answers_that_are_calls_are_told_apart() -> None:
    records = [conversation("?", "", calls=(ToolCall(name="f", arguments={"x": x}),)) for x in (1, 2, 1)]
    assert list(deduplicate(records, Counter())) == records[:2]


def test_composition_reports_both_distributions_MIX_03() -> None:
    report = composition([("math", 30), ("code", 10), ("code", 60)])
    assert (report.samples, report.supervised_tokens) == (3, 100)
    assert report.categories["code"].sample_share == pytest.approx(2 / 3)
    assert report.categories["code"].token_share == pytest.approx(0.7)
    assert list(json.loads(json.dumps(report.as_dict()))["categories"]) == ["code", "math"]


def test_composition_of_nothing_and_of_no_loss() -> None:
    assert composition([]).as_dict() == {"samples": 0, "supervised_tokens": 0, "categories": {}}
    assert composition([("math", 0)]).categories["math"].token_share == 0.0


def test_the_printed_mix_gives_the_printed_shares_MIX_02() -> None:
    printed = {  # Table 3: samples and train tokens, both in thousands
        "general_agent": (3568, 3_840_000, 39.6, 14.2),
        "general_chat": (1599, 3_300_000, 17.7, 12.2),
        "stem": (1359, 2_370_000, 15.1, 8.8),
        "math": (1146, 7_960_000, 12.7, 29.4),
        "code": (793, 4_250_000, 8.8, 15.7),
        "coding_agent": (549, 5_320_000, 6.1, 19.7),
    }
    samples = ((name, row[1] // row[0]) for name, row in printed.items() for _ in range(row[0]))
    report = composition(samples)  # type: ignore[arg-type]
    for name, share in report.categories.items():
        assert share.sample_share * 100 == pytest.approx(printed[name][2], abs=0.06)
        assert share.token_share * 100 == pytest.approx(printed[name][3], abs=0.06)
