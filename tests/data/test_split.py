"""The interleaved-thinking split (SPLIT-01..07)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.split import SupervisedExample, ends_response, is_request, split
from rufus_core.types import Conversation, Message, ToolCall

REMINDER = "<system-reminder>Be brief.</system-reminder>"


def message(name: str, reasoning: str | None = "thought") -> Message:
    """`sys`, `u1`, `r1` (a reminder in a user-role turn), `t1`, `a1`, `a1c` (with a call): the name is the content."""
    if name == "sys":
        return Message(role="system", content=name)
    if name[0] == "r":
        return Message(role="user", content=REMINDER)
    if name[0] in "ut":
        return Message(role="user" if name[0] == "u" else "tool", content=name)
    calls = (ToolCall(name="f", arguments={}),) if name.endswith("c") else ()
    return Message(role="assistant", content=name, reasoning=reasoning, tool_calls=calls)


def conversation(names: str, **reasoning: str | None) -> Conversation:
    messages = tuple(message(name, reasoning.get(name, "thought")) for name in names.split())
    return Conversation(messages=messages, source="mine", category="general_agent")


def examples(conversation: Conversation) -> list[SupervisedExample]:
    return list(split(conversation, Counter()))


def contents(example: SupervisedExample) -> str:
    return " ".join(m.content for m in example.messages)


def supervised(example: SupervisedExample) -> set[str]:
    return {m.content for m, loss in zip(example.messages, example.supervise, strict=True) if loss}


def with_reasoning(example: SupervisedExample) -> set[str]:
    return {m.content for m in example.messages if m.reasoning}


def test_first_vector_gives_two_examples_SPLIT_02_03_04_05() -> None:
    first, second = examples(conversation("sys u1 a1c t1 a2 u2 a3c t2 a4c t3 a5"))
    assert contents(first) == "sys u1 a1c t1 a2"
    assert supervised(first) == with_reasoning(first) == {"a1c", "a2"}
    assert contents(second) == "sys u1 a1c t1 a2 u2 a3c t2 a4c t3 a5"
    assert supervised(second) == with_reasoning(second) == {"a3c", "a4c", "a5"}


def test_second_vector_a_call_without_result_ends_a_response_SPLIT_01() -> None:
    first, second = examples(conversation("u1 a1c u2 a2"))
    assert (contents(first), supervised(first)) == ("u1 a1c", {"a1c"})
    assert (contents(second), supervised(second)) == ("u1 a1c u2 a2", {"a2"})


@pytest.mark.parametrize(
    ("names", "index", "ends"),
    [
        ("u1 a1 u2", 1, True),
        ("u1 a1c t1", 1, False),
        ("u1 a1c u2", 1, True),
        ("u1 a1", 0, False),
        ("u1 a1 t1", 1, True),
    ],
)
def test_response_ends_SPLIT_01(names: str, index: int, ends: bool) -> None:
    assert ends_response(conversation(names).messages, index) is ends


@pytest.mark.parametrize(
    ("text", "real"),
    [
        ("Please help.", True),
        (REMINDER, False),
        (f"{REMINDER}\nNow add tests.", True),
        ("<tool_response>\n{}\n</tool_response>\n<tool_response>1</tool_response>", False),
        ("OBSERVATION:\nfile.py", False),
        ("My observation: it rains.", True),
        ("What does <system-reminder> mean?", True),
        ("", False),
    ],
)
def test_real_requests(text: str, real: bool) -> None:
    assert is_request(Message(role="user", content=text)) is real


def test_only_user_messages_are_requests() -> None:
    assert not is_request(Message(role="assistant", content="Please help."))


def test_responses_without_a_request_between_them_are_merged_SPLIT_07() -> None:
    counts: Counter[str] = Counter()
    (example,) = split(conversation("u1 a1c r1 a2 r2 a3"), counts)
    assert supervised(example) == with_reasoning(example) == {"a1c", "a2", "a3"}
    assert counts["merged_responses"] == 2


def test_the_first_user_message_is_always_a_request() -> None:
    (example,) = examples(conversation("r1 a1"))
    assert supervised(example) == {"a1"}


def test_a_declared_predicate_decides_what_a_request_is() -> None:
    found = split(conversation("u1 a1 u2 a2"), Counter(), is_request=lambda m: m.content == "u1")
    assert [supervised(example) for example in found] == [{"a1", "a2"}]


def test_a_greeting_before_any_request_is_not_supervised() -> None:
    (example,) = examples(conversation("sys a0 u1 a1"))
    assert (supervised(example), with_reasoning(example)) == ({"a1"}, {"a1"})


def test_a_chain_that_the_user_interrupts_is_context_only() -> None:
    (example,) = examples(conversation("u1 a1c t1 u2 a2"))
    assert supervised(example) == with_reasoning(example) == {"a2"}


def test_a_conversation_without_reasoning_is_supervised_with_empty_think_blocks() -> None:
    counts: Counter[str] = Counter()
    first, second = split(conversation("u1 a1c t1 a2 u2 a3", a1c=None, a2=None, a3=None), counts)
    assert supervised(first) == {"a1c", "a2"}
    assert [m.reasoning for m in first.messages] == [None, "", None, ""]
    assert supervised(second) == {"a3"}
    assert (counts["non_thinking_steps"], counts["masked_steps"]) == (3, 0)


def test_a_step_without_reasoning_in_a_thinking_trajectory_is_masked() -> None:
    counts: Counter[str] = Counter()
    (example,) = split(conversation("u1 a1c t1 a2", a1c=None), counts)
    assert supervised(example) == {"a2"}
    assert (counts["non_thinking_steps"], counts["masked_steps"]) == (0, 1)


def test_a_deliberately_empty_think_block_is_supervised() -> None:
    (example,) = examples(conversation("u1 a1c t1 a2", a2=""))
    assert supervised(example) == {"a1c", "a2"}


def test_an_example_without_any_loss_is_left_out_and_counted() -> None:
    counts: Counter[str] = Counter()
    (example,) = split(conversation("u1 a1 u2 a2", a2=None), counts)
    assert supervised(example) == {"a1"}
    assert counts["unsupervised_examples"] == 1


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    kinds = draw(st.lists(st.sampled_from(["u", "r", "a", "ac", "t"]), max_size=12))
    names = [f"{kind[0]}{i}{kind[1:]}" for i, kind in enumerate(kinds)]
    thoughts = draw(st.lists(st.sampled_from([None, "", "thought"]), min_size=len(names), max_size=len(names)))
    return conversation(" ".join(["sys", *names]), **dict(zip(names, thoughts, strict=True)))


@given(conversations())
def test_no_message_is_supervised_twice_SPLIT_07(source: Conversation) -> None:
    seen = Counter(content for example in examples(source) for content in supervised(example))
    assert all(count == 1 for count in seen.values())


@given(conversations())
def test_examples_are_prefixes_with_loss_on_assistants_after_the_last_request_SPLIT_04_05_06(
    source: Conversation,
) -> None:
    first_user = next((i for i, m in enumerate(source.messages) if m.role == "user"), None)
    for example in examples(source):
        size = len(example.messages)
        assert [m.content for m in example.messages] == [m.content for m in source.messages[:size]]
        assert ends_response(source.messages, size - 1)
        request = max(i for i, m in enumerate(example.messages) if i == first_user or is_request(m))
        for index, (part, loss) in enumerate(zip(example.messages, example.supervise, strict=True)):
            if index < request:
                assert not loss
                assert part.reasoning is None
            elif part.role == "assistant":
                assert loss == (part.reasoning is not None)
            else:
                assert not loss


@given(conversations())
def test_every_response_to_a_request_with_reasoning_is_supervised_SPLIT_02(source: Conversation) -> None:
    covered = {content for example in examples(source) for content in supervised(example)}
    asked = False
    for index, part in enumerate(source.messages):
        asked = asked or part.role == "user"
        if asked and part.reasoning and ends_response(source.messages, index):
            assert part.content in covered
