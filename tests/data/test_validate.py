"""What a supervised example must fulfil (VALID-01..03)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from rufus_core.data.split import SupervisedExample, split
from rufus_core.data.validate import faults, valid
from rufus_core.types import Conversation, Message, ToolCall
from tests.data.test_split import conversation

BAD_TAGS = "unbalanced think tags"


def example(messages: tuple[Message, ...], supervise: tuple[bool, ...] | None = None) -> SupervisedExample:
    last = len(messages) - 1
    mask = tuple(i == last for i in range(len(messages))) if supervise is None else supervise
    return SupervisedExample(messages, mask, (), "mine", "math")


def named(names: str) -> SupervisedExample:
    return example(tuple(m.model_copy(update={"reasoning": None}) for m in conversation(names).messages))


@pytest.mark.parametrize(
    "names", ["u1 a1", "sys u1 a1", "u1 a1c", "u1 a1c t1 a2", "u1 a1c u2 a2", "u1 a1c r1 a2", "u1 a1c t1 r1 a2"]
)
def test_valid_transitions_VALID_01(names: str) -> None:
    assert faults(named(names)) == []


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("a1", "no user message at the start"),
        ("sys a1 u1 a2", "no user message at the start"),
        ("u1 sys a1", "system message after the start"),
        ("sys sys u1 a1", "system message after the start"),
        ("u1 a1 a2", "two assistant messages in a row"),
        ("u1 t1 a1", "tool result without a call"),
        ("u1 a1 t1 a2", "tool result without a call"),
        ("u1 a1c t1 t2 a2", "results don't match the calls"),
        ("u1 a1c t1 u2 a2", "request in the middle of a tool chain"),
        ("u1 a1c t1", "no assistant message at the end"),
        ("u1", "no assistant message at the end"),
    ],
)
def test_invalid_transitions_VALID_01(names: str, reason: str) -> None:
    assert reason in faults(named(names))


def test_parallel_results_stay_together_VALID_01() -> None:
    calls = (ToolCall(name="f", arguments={}), ToolCall(name="g", arguments={}))
    result = Message(role="tool", content="1")
    before = (Message(role="user", content="?"), Message(role="assistant", tool_calls=calls))
    answer = Message(role="assistant", content="2")
    assert faults(example((*before, result, result, answer))) == []
    for results in ((result,), (result, result, result)):
        assert faults(example((*before, *results, answer))) == ["results don't match the calls"]


@pytest.mark.parametrize(
    ("content", "reasoning", "reasons"),
    [
        ("a", "b", []),
        ("a <think>b</think> c", None, []),
        ("a <think> c", None, [BAD_TAGS]),
        ("a </think> c", None, [BAD_TAGS]),
        ("</think>a<think>", None, [BAD_TAGS]),
        ("<think><think>a</think></think>", None, [BAD_TAGS]),
        ("a", "b </think> c", [BAD_TAGS]),
        ("a", "<think>b</think>", [BAD_TAGS]),
        ("a<|user|>b", None, ["control tag in a reply"]),
        ("<tool_call>f</tool_call>", None, ["control tag in a reply"]),
    ],
)
def test_tags_in_replies_VALID_01(content: str, reasoning: str | None, reasons: list[str]) -> None:
    reply = Message(role="assistant", content=content, reasoning=reasoning)
    assert faults(example((Message(role="user", content="<think>?"), reply))) == reasons


@pytest.mark.parametrize(
    ("supervise", "reason"),
    [
        ((False, False, False, False), "nothing supervised"),
        ((False, False, False), "mask of another length"),
        ((False, False, True, True), "loss on a user message"),
        ((False, True, False, True), "loss or reasoning before the last request"),
    ],
)
def test_masks_VALID_01(supervise: tuple[bool, ...], reason: str) -> None:
    messages = named("u1 a1 u2 a2").messages
    assert faults(example(messages, supervise)) == [reason]


def test_loss_on_a_tool_result_is_refused_VALID_01() -> None:
    messages = named("u1 a1c t1 a2").messages
    assert faults(example(messages, (False, True, True, True))) == ["loss on a tool message"]


def test_loss_on_an_empty_reply_is_refused_VALID_01() -> None:
    first, reply = named("u1 a1").messages
    assert faults(example((first, reply.model_copy(update={"content": " \n"})))) == ["loss on an empty reply"]


def test_reasoning_in_the_history_is_refused_SPLIT_04() -> None:
    one = named("u1 a1 u2 a2")
    kept = one.messages[1].model_copy(update={"reasoning": "old"})
    assert faults(replace(one, messages=(one.messages[0], kept, *one.messages[2:])))


def test_what_the_split_makes_of_a_sound_conversation_passes() -> None:
    source: Conversation = conversation("sys u1 a1c t1 a2 u2 a3c t2 a4c t3 a5")
    assert [faults(one) for one in split(source, Counter())] == [[], []]


def test_examples_over_the_cap_are_dropped_whole_VALID_02_03() -> None:
    counts: Counter[str] = Counter()
    made = [named("u1 a1"), named("u1 a1 u2 a2"), named("u1 a1 a2")]
    kept = list(valid(made, counts, count_tokens=lambda e: 10 * len(e.messages), cap_tokens=20))
    assert kept == [made[0]]
    assert counts == {"valid": 1, "over_cap": 1, "refused": 1, "two assistant messages in a row": 1}


def test_without_a_cap_every_length_passes() -> None:
    made = [named("u1 a1")]
    assert list(valid(made, Counter(), count_tokens=lambda e: 10**9, cap_tokens=None)) == made
