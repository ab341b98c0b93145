"""Judges: the deterministic one that ships here, and how a recipe names one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.lexicon import POLITE_WORDS, RUDE_WORDS, TOPIC_WORDS
from rufus_core.data.words import TOPICS
from rufus_core.errors import ConfigError, DataError
from rufus_core.rewards.judges import LexicalJudge, judge_identity, make_judge
from rufus_core.types import Message

JUDGE = LexicalJudge()


def answer(reference: str, text: str) -> float:
    return JUDGE.score({"kind": "answer", "reference": reference}, text)


@pytest.mark.parametrize(
    ("reference", "text", "score"),
    [
        ("Lyon", "Lyon", 1.0),
        ("Lyon", "  the lyon. ", 1.0),
        ("Lyon", "Jena", 0.0),
        ("Lyon", "", 0.0),
        ("Lyon", "Lyonnais", 0.0),
        ("Lyon, Jena", "Jena, Lyon", 1.0),
        ("Lyon, Jena", "Lyon and Jena", 1.0),
        ("Lyon, Jena", "Lyon", 0.5),
        ("Lyon, Jena", "Lyon, Lyon", 0.5),
        ("Lyon", "Lyon, Jena, Kyoto, Dover", 0.25),
        ("28", "28%", 0.0),
        ("-3", "3", 0.0),
        ("1,000", "1000", 1.0),
        ("1, 000", "1000", 0.0),
        ("\uff2cyon", "Lyon", 1.0),
        ("", "", 0.0),
    ],
)
def test_answers_and_partial_credit(reference: str, text: str, score: float) -> None:
    assert answer(reference, text) == score


@given(st.lists(st.sampled_from(["Lyon", "Jena", "Kyoto", "Dover"]), min_size=1, unique=True), st.text(max_size=40))
def test_scores_lie_in_0_to_1_and_the_reference_answers_itself(items: list[str], text: str) -> None:
    reference = ", ".join(items)
    assert 0.0 <= answer(reference, text) <= 1.0
    assert answer(reference, reference) == 1.0


def test_topics_are_told_by_whole_words() -> None:
    assert set(TOPIC_WORDS) == set(TOPICS)
    for topic in TOPICS:
        other = next(words[0] for name, words in TOPIC_WORDS.items() if name != topic)
        for word in TOPIC_WORDS[topic]:
            assert JUDGE.score({"kind": "topic", "topic": topic}, f"I see {word.upper()}s.") == 1.0
        assert JUDGE.score({"kind": "topic", "topic": topic}, f"I see a {other}.") == 0.0
    assert JUDGE.score({"kind": "topic", "topic": "animals"}, "a catalogue of dogma") == 0.0


def test_no_word_belongs_to_two_topics() -> None:
    words = [word for group in TOPIC_WORDS.values() for word in group]
    assert len(words) == len(set(words))


def test_polite_needs_a_kind_word_and_no_rude_one() -> None:
    criterion = {"kind": "polite"}
    assert JUDGE.score(criterion, f"{POLITE_WORDS[0]}, read this") == 1.0
    assert JUDGE.score(criterion, "read this") == 0.0
    assert JUDGE.score(criterion, f"{POLITE_WORDS[0]}, you {RUDE_WORDS[0]}") == 0.0


@pytest.mark.parametrize("criterion", [{}, {"kind": "beauty"}])
def test_what_it_cannot_answer_raises_and_is_never_a_zero(criterion: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        JUDGE.score(criterion, "text")


@pytest.mark.parametrize(
    "criterion", [{"kind": "topic", "topic": "law"}, {"kind": "topic", "topic": ["sea"]}, {"kind": "answer"}]
)
def test_a_criterion_without_its_fields_is_a_fault_of_the_data(criterion: dict[str, object]) -> None:
    with pytest.raises(DataError):
        JUDGE.score(criterion, "text")


def test_make_judge_knows_builtins_and_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUFUS_JUDGE_URL", raising=False)
    assert make_judge("builtin:lexical").identity == "builtin:lexical"
    assert make_judge("some-model", "http://127.0.0.1:9/v1").identity == "openai:v2:some-model@t0"
    assert judge_identity("some-model") == "openai:v2:some-model@t0"
    assert judge_identity("builtin:lexical") == "builtin:lexical"
    with pytest.raises(ConfigError, match="unknown judge"):
        make_judge("builtin:lexicla")
    with pytest.raises(ConfigError, match="needs an endpoint"):
        make_judge("some-model")


def test_a_rubric_holds_from_half_on_whatever_was_said_before() -> None:
    before = [Message(role="user", content="please be rude")]
    assert JUDGE.holds({"kind": "polite"}, before, "thanks")
    assert not JUDGE.holds({"kind": "polite"}, before, "read this")
    assert JUDGE.holds({"kind": "answer", "reference": "Lyon, Jena"}, (), "Lyon")
    with pytest.raises(ConfigError):
        JUDGE.holds({"kind": "beauty"}, before, "thanks")
