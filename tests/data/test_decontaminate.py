"""Detectors A and B (DECON-01..08, DECON-12)."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.benchmarks import Benchmark
from rufus_core.data.decontaminate import (
    Screen,
    conversation_turns,
    decontaminate,
    phrases,
    problem_turns,
)
from rufus_core.data.text import words
from rufus_core.errors import ConfigError, DataError
from rufus_core.types import Conversation, Message, Problem, ToolCall
from tests.data.real import real

ITEM = " ".join(f"w{i}" for i in range(27))  # 27 words have 20 starts


def screen(*texts: str, **options: object) -> Screen:
    items = {str(index): text for index, text in enumerate(texts)}
    return Screen(Benchmark("bench", items), **options)  # type: ignore[arg-type]


def kept(samples: list[list[str]], *screens: Screen) -> list[list[str]]:
    return decontaminate(samples, screens, list)[0]


def with_hits(num_hits: int, item: str = ITEM) -> str:
    """A text that holds exactly the first `num_hits` phrases of an item."""
    return " ".join(item.split()[: num_hits + 7])


def test_ten_of_twenty_phrases_drop_and_nine_keep_DECON_03() -> None:
    ten, nine = [with_hits(10)], [with_hits(9)]
    assert kept([ten, nine], screen(ITEM)) == [nine]


def test_hits_on_different_items_do_not_add_up_DECON_03() -> None:
    other = ITEM.replace("w", "v")
    sample = [with_hits(9), with_hits(9, other)]
    assert kept([sample], screen(ITEM, other)) == [sample]


@pytest.mark.parametrize("num_words", [8, 9, 27, 28, 60, 500])
def test_phrases_are_evenly_spaced_from_first_to_last_DECON_01(num_words: int) -> None:
    text = " ".join(f"w{i}" for i in range(num_words))
    found = phrases(text, 20, 8, 5)
    starts = [int(phrase.split()[0][1:]) for phrase in found]
    assert len(found) == min(20, num_words - 7)
    assert (starts[0], starts[-1]) == (0, num_words - 8)
    gaps = {b - a for a, b in pairwise(starts)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_every_phrase_is_taken_by_the_exhaustive_detector_DECON_07() -> None:
    text = " ".join(f"w{i}" for i in range(100))
    assert len(phrases(text, None, 8, 5)) == 93
    hit = ["x " + " ".join(text.split()[41:49]) + " y"]
    _, (report,) = decontaminate([hit], [screen(text, phrases_per_item=None)], list)
    assert (report.num_removed, report.borderline) == (0, [0])


def test_repeated_phrases_count_once() -> None:
    text = "a b c d e f g h " * 5
    found = phrases(text, None, 8, 5)
    assert len(found) == len(set(found)) == 8


def test_whitespace_and_case_are_normalised_on_both_sides_DECON_02() -> None:
    spaced = ITEM.upper().replace(" ", "\n\t ")
    assert kept([[spaced]], screen(ITEM)) == []
    assert kept([[ITEM]], screen(spaced)) == []


def test_a_phrase_never_matches_across_turns_DECON_02() -> None:
    first, second = " ".join(ITEM.split()[:7]), " ".join(ITEM.split()[7:14])
    sample = [first, second]
    assert screen(ITEM).matches([words(turn) for turn in sample]) == []
    assert screen(ITEM).matches([words(" ".join(sample))])


def test_items_under_eight_words_are_one_phrase_or_skipped_and_counted() -> None:
    short, tiny = "What is the capital city?", "How are you?"
    samples = [["So: what is the  capital city? Paris."], ["how are you? Fine."], ["What is the capital"]]
    left, (report,) = decontaminate(samples, [screen(short, tiny, "")], list)
    assert left == samples[1:]
    assert (report.num_items, report.num_skipped_items, report.num_removed) == (3, 2, 1)


def test_passes_are_chained_DECON_04() -> None:
    other = ITEM.replace("w", "v")
    samples = [[ITEM], [other], [ITEM, other], ["clean"]]
    left, (first, second) = decontaminate(samples, [screen(ITEM), screen(other)], list)
    assert left == [["clean"]]
    assert (first.num_samples, first.num_removed) == (4, 2)
    assert (second.num_samples, second.num_removed) == (2, 1)


def test_evidence_per_item_and_allow_list_DECON_06() -> None:
    samples = [[ITEM], [with_hits(9)], ["clean"]]
    _, (report,) = decontaminate(samples, [screen(ITEM)], list)
    evidence = report.items["0"]
    assert (evidence.num_phrases, evidence.num_flagged, evidence.num_borderline) == (20, 1, 1)
    assert evidence.max_share == 1.0
    assert [(index, share) for index, share, _ in evidence.examples] == [(0, 1.0), (1, 0.45)]
    assert report.borderline == [1]

    left, (report,) = decontaminate(samples, [screen(ITEM, allowed=["0"])], list)
    assert left == samples
    assert (report.num_removed, report.num_allowed, report.items["0"].num_flagged) == (0, 1, 1)


def test_an_allowed_item_does_not_shield_a_sample_from_another_item() -> None:
    other = ITEM.replace("w", "v")
    assert kept([[ITEM, other]], screen(ITEM, other, allowed=["0"])) == []


def test_an_item_that_flags_very_many_samples_needs_review_DECON_06() -> None:
    def evidence(num_samples: int) -> bool:
        _, (report,) = decontaminate([[ITEM]] * num_samples, [screen(ITEM)], list)
        return report.items["0"].needs_review

    assert (evidence(100), evidence(101)) == (False, True)


@pytest.mark.parametrize("options", [{"phrase_words": 1}, {"whole_item_min_words": 1}])
def test_phrases_of_one_word_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="two words"):
        screen(ITEM, **options)


few_words = st.lists(st.sampled_from(["a", "b", "ab", "ba", "a.", "aab"]), max_size=14).map(" ".join)


@given(
    items=st.lists(few_words, min_size=1, max_size=4),
    turns=st.lists(few_words, max_size=3),
    phrase_words=st.integers(2, 8),
    shortest=st.integers(2, 5),
    per_item=st.sampled_from([None, 2, 20]),
)
def test_lookup_equals_the_substring_definition_DECON_02(
    items: list[str], turns: list[str], phrase_words: int, shortest: int, per_item: int | None
) -> None:
    haystack = "\n".join(" ".join(turn.lower().split()) for turn in turns)
    expected = {}
    for index, item in enumerate(items):
        held = {p for p in phrases(item, per_item, phrase_words, shortest) if p in haystack}
        if held:
            expected[str(index)] = held
    compiled = screen(*items, phrase_words=phrase_words, whole_item_min_words=shortest, phrases_per_item=per_item)
    found = compiled.matches([words(turn) for turn in turns])
    assert {match.item_id: set(match.phrases) for match in found} == expected


def test_conversation_turns_hold_reasoning_content_and_arguments_DECON_02() -> None:
    call = ToolCall(name="search", arguments={"q": "asked", "n": 5})
    messages = (
        Message(role="system", content="rules"),
        Message(role="user", content="question"),
        Message(role="assistant", reasoning="thought", tool_calls=(call,)),
        Message(role="tool", content="found"),
        Message(role="assistant", content="answer"),
    )
    conversation = Conversation(messages=messages, source="mine", category="math")
    assert conversation_turns(conversation) == ["rules", "question", "thought", "asked", "5", "found", "answer"]


def test_prompt_sets_are_screened_by_their_prompts_DECON_12() -> None:
    problem = Problem.build("f", "mine", [Message(role="user", content=ITEM)], {"answer": "1"})
    left, _ = decontaminate([problem], [screen(ITEM)], problem_turns)
    assert left == []


def test_shared_opening_and_closing_words_are_boilerplate() -> None:
    items = {str(i): f"Solve this math task now: item {i} x{i}\nPut your final answer in a box." for i in range(9)}
    built = Benchmark.build("bench", {**items, "odd": "Another text without any of it."})
    assert built.boilerplate == ("Solve this math task now: item", "Put your final answer in a box.")
    assert built.items["3"] == "3 x3"
    assert built.items["odd"] == "Another text without any of it."


def test_few_items_short_runs_and_items_of_boilerplate_alone_stay_whole() -> None:
    items = {str(i): f"item {i} then put it in a box" for i in range(7)}
    assert Benchmark.build("few", items).boilerplate == ()
    assert Benchmark.build("short", {str(i): f"item {i} in a box" for i in range(9)}).boilerplate == ()
    alone = Benchmark.build("alone", {str(i): "put it in a box please" for i in range(9)})
    assert alone.items["0"] == "put it in a box please"


def test_a_benchmark_without_items_is_an_error() -> None:
    with pytest.raises(DataError, match="no items"):
        Benchmark.build("none", {})


def test_all_verbatim_humaneval_items_are_found() -> None:
    with gzip.open(real("humaneval/HumanEval.jsonl.gz"), "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    benchmark = Benchmark.build("humaneval", {row["task_id"]: row["prompt"] for row in rows})
    samples = [[f"Please complete:\n{row['prompt']}", row["canonical_solution"]] for row in rows]
    left, (report,) = decontaminate(samples, [Screen(benchmark)], list)
    assert (len(rows), left, report.num_removed) == (164, [], 164)


def test_the_instruction_appended_to_aime_is_no_evidence() -> None:
    items, others = (
        [json.loads(line)["prompt"] for line in real(f"math/{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("aime24", "math500")
    )
    by_id = {str(index): text for index, text in enumerate(items)}
    samples = [[text] for text in others]
    _, (raw,) = decontaminate(samples, [Screen(Benchmark("raw", by_id), phrases_per_item=None)], list)
    assert len(raw.borderline) == 500

    compiled = Screen(Benchmark.build("aime_24", by_id), phrases_per_item=None)
    left, (report,) = decontaminate(samples, [compiled], list)
    assert len(left) == 500
    assert len(report.borderline) < 5
    assert kept([[text] for text in items], compiled) == []
