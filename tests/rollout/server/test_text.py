"""Text as it grows: characters that come in parts, stop strings, and the parts of a turn."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.chat import ChatFormat
from rufus_core.data.tokenizer import build_tokenizer
from rufus_core.rollout.server.body import parse_object
from rufus_core.rollout.server.completion import GrowingText, find_stop, held_back
from rufus_core.rollout.server.refusal import Refusal
from rufus_core.rollout.server.turn_stream import TurnStream
from rufus_core.types import ToolSchema

CHAT = ChatFormat(build_tokenizer(["hello", "world"], 128))
LOOK = ToolSchema(name="look")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=30))
def test_text_grows_to_what_all_ids_say(text: str) -> None:
    growing = GrowingText(CHAT.decode)
    pieces = [growing.push([token]) for token in CHAT.tokenizer(text, add_special_tokens=False)["input_ids"]]
    assert "".join(pieces) == growing.text == text


def test_bytes_that_are_no_text_hold_nothing_up() -> None:
    growing = GrowingText(CHAT.decode)
    byte = CHAT.tokenizer.convert_tokens_to_ids("<0xFF>")
    assert any(growing.push([byte]) for _ in range(4))


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_stop_string_is_found_as_soon_as_it_is_whole_and_never_shown(text: str, stops: list[str]) -> None:
    for end in range(1, len(text) + 1):
        found = find_stop(text[:end], stops, end - 1)
        assert (found is not None) == any(stop in text[:end] for stop in stops)
        if found:
            return
        shown = end - held_back(text[:end], stops)
        assert all(text.find(stop) < 0 or text.find(stop) >= shown for stop in stops if text.find(stop) < end)


_WORDS = st.text("ab \n<", max_size=8)


@given(st.data(), st.booleans(), _WORDS, _WORDS, st.booleans())
def test_the_parts_of_a_turn_are_those_of_the_whole(
    data: st.DataObject, thinks: bool, reasoning: str, content: str, calls: bool
) -> None:
    text = (f"\n<think>{reasoning}</think>" if thinks else "") + content
    text += "<tool_call>look\n</tool_call>" if calls else ""
    stream, parts, left = TurnStream(thinking=False, tools=True), defaultdict(str), text
    while left:
        size = data.draw(st.integers(1, len(left)))
        for part, piece in stream.push(left[:size]):
            assert piece
            parts[part] += piece
        left = left[size:]
    for part, piece in stream.end():
        parts[part] += piece
    message = CHAT.parse(CHAT.tokenizer(text, add_special_tokens=False)["input_ids"], [LOOK]).message
    assert parts["content"] == message.content
    assert parts["reasoning"] == (message.reasoning or "")
    assert not parts["calls"]


def test_a_prompt_may_have_opened_the_think_block() -> None:
    stream = TurnStream(thinking=True, tools=False)
    assert stream.push("why </thi") == [("reasoning", "why")]
    assert stream.push("nk> because ") == [("content", "because")]
    assert stream.end() == []


@pytest.mark.parametrize("raw", [b"[]", b"1x", b'{"a": NaN}', b'{"a": "\\ud800"}', b"\xff", b"[" * 10**6, b'{"a": 1'])
def test_what_is_no_plain_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(Refusal):
        parse_object(raw)


def test_plain_json_is_taken() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00 \\u00fc"}') == {"a": "\U0001f600 \u00fc"}
