"""The miniature's tokenizer loses nothing and keeps what the chat format relies on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rufus_core.data.tokenizer import MARKER_TOKENS, SPECIAL_TOKENS, build_tokenizer, count_words

WORDS = ("hello", "world", "answer")
TOKENIZER = build_tokenizer(WORDS, 64)

any_text = st.text(st.characters(exclude_categories=["Cs"]))
awkward = st.sampled_from(
    [*SPECIAL_TOKENS, *MARKER_TOKENS, *WORDS, "<0x41>", "<0xC3><0xA9>", "<0x", "<|", "▁", "\x00", "\r\n", "\x7f",
     "\x85", "\u2028", "\ufeff", "e\u0301", "👩‍👩‍👧", "\U0010ffff", "ﬁ", "½", "  ", " ."]
)  # fmt: skip


def ids_of(text: str, tokenizer: PreTrainedTokenizerFast = TOKENIZER) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@given(st.lists(any_text | awkward, max_size=8).map("".join))
def test_any_text_makes_the_round_trip(text: str) -> None:
    assert TOKENIZER.decode(ids_of(text), skip_special_tokens=False) == text


def test_round_trip_survives_the_disk(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "hello <|user|>\n wörld ! . , 's n't <0x41> ▁ \x00"
    assert ids_of(text, loaded) == ids_of(text)
    assert loaded.decode(ids_of(text), skip_special_tokens=False) == text
    assert loaded.chat_template == TOKENIZER.chat_template


@given(
    st.sampled_from(WORDS),
    st.text(st.characters(exclude_categories=["Cs", "L"]), max_size=6),
    st.text(st.characters(exclude_categories=["Cs", "L"]), max_size=6),
)
def test_a_whole_word_is_one_token_wherever_it_stands(word: str, before: str, after: str) -> None:
    [word_id] = ids_of(word)
    ids = ids_of(before + word + after)
    assert ids == [*ids_of(before), word_id, *ids_of(after)]


@pytest.mark.parametrize("token", [*SPECIAL_TOKENS, *MARKER_TOKENS])
def test_each_special_and_marker_token_is_one_id_inside_any_text(token: str) -> None:
    [token_id] = ids_of(token)
    assert ids_of(f"hello{token}7") == [*ids_of("hello"), token_id, *ids_of("7")]
    assert TOKENIZER.convert_tokens_to_ids(token) == token_id


def test_all_special_and_marker_tokens_differ() -> None:
    ids = [TOKENIZER.convert_tokens_to_ids(token) for token in (*SPECIAL_TOKENS, *MARKER_TOKENS)]
    assert len(set(ids)) == len(ids)


def test_text_that_spells_a_byte_token_is_not_that_byte() -> None:
    assert ids_of("<0x41>") == [token for sign in "<0x41>" for token in ids_of(sign)]
    assert len(ids_of("<0x41>")) == 6


def test_digits_signs_and_spaces_are_tokens_of_their_own() -> None:
    assert len(ids_of("12 + 34.5\n")) == 10


def test_a_character_outside_the_vocabulary_is_its_bytes() -> None:
    assert len(ids_of("é")) == 2
    assert len(ids_of("👩")) == 4


def test_same_words_same_bytes_on_disk(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        build_tokenizer(list(WORDS), 64).save_pretrained(tmp_path / folder)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_word_given_twice_or_that_is_a_character_takes_no_second_id() -> None:
    assert build_tokenizer(["a", "hello", "7", "hello", "world", "answer"], 64).get_vocab() == TOKENIZER.get_vocab()


def test_ids_are_dense_and_padding_is_the_end_of_text() -> None:
    assert sorted(TOKENIZER.get_vocab().values()) == list(range(len(TOKENIZER)))
    assert TOKENIZER.pad_token_id == TOKENIZER.eos_token_id == 0


def test_count_words_ranks_by_frequency_then_alphabet() -> None:
    texts = ["bb aa bb", "aa, cc! x x x x", "Bb dd dd dd"]
    assert count_words(texts, most=10, at_least=2) == ["dd", "aa", "bb"]
    assert count_words(texts, most=2, at_least=1) == ["dd", "aa"]
    assert count_words([], most=5) == []
