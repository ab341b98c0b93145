"""Repair passes (NORM-01..03)."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from rufus_core.data.layouts import conversation_from_row
from rufus_core.data.normalise import (
    REPAIRS,
    answer_suffixes,
    incomplete_final_turns,
    normalise,
    reasoning_tags,
    system_prompts,
)
from rufus_core.data.split import split
from rufus_core.data.validate import faults
from rufus_core.types import Conversation, Message, ToolCall
from tests.data.real import real

CALL = (ToolCall(name="f", arguments={}),)


def conversation(*messages: Message) -> Conversation:
    return Conversation(messages=messages, source="mine", category="general_chat")


def user(text: str = "?") -> Message:
    return Message(role="user", content=text)


def reply(text: str, reasoning: str | None = None, calls: tuple[ToolCall, ...] = ()) -> Message:
    return Message(role="assistant", content=text, reasoning=reasoning, tool_calls=calls)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def test_system_prompts_are_merged_and_empty_ones_dropped_NORM_02() -> None:
    assert system_prompts(conversation(system("a"), system(" "), system("b"), user())).messages == (
        system("a\n\nb"),
        user(),
    )
    assert system_prompts(conversation(system(" "), user())).messages == (user(),)
    untouched = conversation(system(" a "), user())
    assert system_prompts(untouched) == untouched


@pytest.mark.parametrize(
    ("content", "field", "reasoning", "answer"),
    [
        ("<think>because</think>yes", None, "because", "yes"),
        ("\n<think>\nbecause\n</think>\n\nyes", None, "because", "yes"),
        ("because</think>yes", None, "because", "yes"),
        ("<think><think>because</think>yes", None, "because", "yes"),
        ("<think></think>yes", None, None, "yes"),
        ("<think>because</think>yes", "because", "because", "yes"),
        ("<think>\n</think>yes", "because", "because", "yes"),
        ("yes", "because", "because", "yes"),
    ],
)
def test_reasoning_tags_are_moved_to_the_field_NORM_02(
    content: str, field: str | None, reasoning: str | None, answer: str
) -> None:
    repaired = reasoning_tags(conversation(user(), reply(content, field))).messages[1]
    assert (repaired.reasoning, repaired.content) == (reasoning, answer)


@pytest.mark.parametrize("content", ["yes", "<think>open", "Well. <think>because</think>yes"])
def test_tags_that_are_no_leading_block_are_left_for_the_validation(content: str) -> None:
    untouched = conversation(user(), reply(content))
    assert reasoning_tags(untouched) == untouched


def test_two_different_thoughts_are_left_for_the_validation() -> None:
    untouched = conversation(user(), reply("<think>one</think>yes", "two"))
    assert reasoning_tags(untouched) == untouched


def test_tags_in_other_roles_are_text() -> None:
    untouched = conversation(system("Use <think> and </think>."), user("a</think>b"), reply("yes"))
    assert reasoning_tags(untouched) == untouched


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("Yes.<|im_end|>", "Yes."),
        ("Yes.</s>\n<|endoftext|> ", "Yes."),
        ("So <<1+1=2>>2 it is.\n#### 1,234", "So 2 it is.\n\\boxed{1234}"),
        ("#### -2.5", "\\boxed{-2.5}"),
        ("#### Summary", "#### Summary"),
        ("a << b and c >> d", "a << b and c >> d"),
        ("Yes. ", "Yes. "),
    ],
)
def test_answer_suffixes_NORM_02(content: str, answer: str) -> None:
    assert answer_suffixes(conversation(user(), reply(content))).messages[1].content == answer


@pytest.mark.parametrize(
    ("messages", "num_kept"),
    [
        ((user(), reply("a")), 2),
        ((user(), reply("a"), user()), 2),
        ((user(), reply("a"), user(), reply("", calls=CALL), Message(role="tool")), 2),
        ((user(), reply("a"), user(), reply(" ")), 2),
        ((user(), reply("a"), user(), reply("<think>still")), 2),
        ((user(), reply("", calls=CALL)), 2),
        ((user(), reply("", calls=CALL), Message(role="tool"), reply("a"), system("x")), 4),
        ((user(), reply("", calls=CALL), Message(role="tool")), 0),
        ((user(),), 0),
    ],
)
def test_incomplete_final_turns_NORM_02(messages: tuple[Message, ...], num_kept: int) -> None:
    assert incomplete_final_turns(conversation(*messages)).messages == messages[:num_kept]


def test_records_without_a_response_are_dropped_and_repairs_counted_NORM_03() -> None:
    counts: Counter[str] = Counter()
    records = [
        conversation(user()),
        conversation(user(), reply("<think>open")),
        conversation(user(), reply("<think>r</think>a")),
        conversation(user(), reply("a")),
    ]
    kept = list(normalise(records, counts))
    assert [c.messages[1].content for c in kept] == ["a", "a"]
    assert counts["dropped_no_response"] == 2
    assert counts["incomplete_final_turns"] == 2
    assert counts["reasoning_tags"] == 1
    assert counts["answer_suffixes"] == 0


def test_a_repaired_record_needs_no_further_repair() -> None:
    messy = conversation(system(""), user(), reply("because</think>So:\n#### 4</s>"), user())
    (once,) = normalise([messy], Counter())
    counts: Counter[str] = Counter()
    assert list(normalise([once], counts)) == [once]
    assert counts.total() == 0
    assert once.messages == (user(), reply("So:\n\\boxed{4}", "because"))


def test_hermes_records_get_schemas_calls_and_results() -> None:
    schema = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    manual = f"You call tools within <tools></tools> tags:\n<tools>\n{json.dumps([schema])}\n</tools>\nUse <tool_call>."
    call = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    messages = (
        system(f"You are kind.\n\n{manual}"),
        user(),
        reply(f"<think>I may use <tool_call>.</think>\n{call}\n{call}"),
        Message(role="tool", content="<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"),
        reply("<think>done</think>3"),
    )
    (record,) = normalise([conversation(*messages)], Counter())
    assert [tool.name for tool in record.tools] == ["f"]
    assert record.messages[0] == system("You are kind.")
    assert record.messages[2].tool_calls == (ToolCall(name="f", arguments={"x": 1}),) * 2
    assert record.messages[2].content == ""
    assert [m.content for m in record.messages[3:]] == ["1", "2", "3"]


def test_hermes_tags_without_json_stay_text() -> None:
    untouched = conversation(user(), reply("<tool_call>{'name': 'f'}</tool_call>"))
    assert REPAIRS["hermes_tools"](untouched) == untouched


def test_the_real_glm_trajectory_passes_the_whole_path() -> None:
    row = json.loads(real("tool_use/glm_trajectory_search.json").read_text(encoding="utf-8"))
    (record,) = normalise([conversation_from_row(row, "glm", "general_agent", "trajectory")], Counter())
    assert [tool.name for tool in record.tools] == ["search", "open", "finish"]
    (example,) = split(record, Counter())
    assert faults(example) == []
    assert sum(example.supervise) == sum(m.role == "assistant" for m in record.messages)
