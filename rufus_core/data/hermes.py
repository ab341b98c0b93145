"""Reads the Hermes convention: tools in the system prompt and calls in the reply, both inside XML-like tags."""

from __future__ import annotations

import json
import re

from rufus_core.data.layouts import tool_call, tool_schema
from rufus_core.errors import DataError
from rufus_core.types import Conversation, Json, Message, ToolSchema

TOOLS = re.compile(r"<tools>\s*(.*?)\s*</tools>", re.DOTALL)
CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
RESPONSE = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)


def unwrap_hermes(conversation: Conversation) -> Conversation:
    """Move tool schemas out of the system prompt, calls out of the replies and results out of their tags.

    Schemas and calls that a conversation already has as fields win. A conversation whose tags hold anything but JSON
    stays as it is.
    """
    try:
        tools = conversation.tools or tuple(
            schema for m in conversation.messages if m.role == "system" for schema in _schemas(m.content)
        )
        messages = tuple(part for message in conversation.messages for part in _unwrap(message, bool(tools)))
    except (DataError, ValueError, RecursionError):
        return conversation
    return conversation.model_copy(update={"messages": messages, "tools": tools})


def _schemas(text: str) -> list[ToolSchema]:
    # The prompt may name the empty tags before it fills them, so every block is read.
    return [tool_schema(tool, "<tools>") for block in TOOLS.findall(text) for tool in _json_values(block)]


def _unwrap(message: Message, has_tools: bool) -> list[Message]:
    content = message.content
    if message.role == "system" and has_tools and "<tools>" in content:
        return [message.model_copy(update={"content": _without_tool_manual(content)})]
    if message.role == "assistant" and not message.tool_calls and "<tool_call>" in content:
        thought, closing, answer = content.rpartition("</think>")
        calls = tuple(tool_call(json.loads(block), "<tool_call>") for block in CALL.findall(answer))
        return [message.model_copy(update={"content": thought + closing + CALL.sub("", answer), "tool_calls": calls})]
    if message.role == "tool" and (results := RESPONSE.findall(content)):
        return [Message(role="tool", content=result) for result in results]
    return [message]


def _without_tool_manual(text: str) -> str:
    """The prompt before its paragraph on tools. From there on it explains a call format that isn't ours."""
    head = text[: text.index("<tools>")]
    before, heading, _ = head.partition("# Tools")
    return before.strip() if heading else head.rpartition("\n\n")[0].strip()


def _json_values(block: str) -> list[Json]:
    """The values of a block that holds a JSON list, or JSON values one after the other."""
    values: list[Json] = []
    decoder = json.JSONDecoder()
    while block:
        value, end = decoder.raw_decode(block)
        values.extend(value if isinstance(value, list) else [value])
        block = block[end:].lstrip()
    return values
