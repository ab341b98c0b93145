"""Maps one row of a source file, in any of the common layouts, to the common message schema (NORM-01)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from rufus_core.errors import DataError
from rufus_core.types import Category, Conversation, Json, Message, ToolCall, ToolSchema

Format = Literal["auto", "messages", "question_answer"]
Role = Literal["system", "user", "assistant", "tool"]

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
# Single-turn layouts: the question's field and the answer's field, first match wins.
PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("question", "answer"),
    ("problem", "solution"),
    ("instruction", "output"),
)
EXPECTED = {
    "messages": "expected `messages` (role, content) or `conversations` (from, value)",
    "question_answer": "expected " + ", ".join(f"`{question}`/`{answer}`" for question, answer in PAIRS),
}
EXPECTED["auto"] = f"{EXPECTED['messages']}; or {EXPECTED['question_answer']}"


@dataclass(frozen=True, slots=True)
class _Turn:
    """A message on its way in, with the ids that tie parallel tool results to their calls."""

    message: Message
    call_ids: tuple[str, ...] = ()
    result_of: str | None = None


def conversation_from_row(
    row: Mapping[str, Json], source: str, category: Category, where: str, format: Format = "auto"
) -> Conversation:
    """Read one row. Tool arguments are decoded once; parallel tool results follow in the order of their calls.

    Raises:
        DataError: no known layout fits, or a field can't be used; `where` is extended by the field's name.
    """
    if format != "question_answer" and isinstance(row.get("messages"), list):
        messages = _messages(row["messages"], "role", "content", where, "messages")
    elif format != "question_answer" and isinstance(row.get("conversations"), list):
        messages = _messages(row["conversations"], "from", "value", where, "conversations")
    elif format != "messages" and (pair := _pair(row)):
        messages = _single_turn(row, *pair, where)
    else:
        raise DataError("the row has no usable fields", where=where, hint=EXPECTED[format])
    if isinstance(row.get("system"), str) and row["system"] and messages[0].role != "system":
        messages = (Message(role="system", content=row["system"]), *messages)
    tools = _tools(row.get("tools"), f"{where} tools")
    return Conversation(messages=messages, tools=tools, source=source, category=category)


def _pair(row: Mapping[str, Json]) -> tuple[str, str] | None:
    for question, answer in PAIRS:
        if isinstance(row.get(question), str) and isinstance(row.get(answer), str):
            return question, answer
    return None


def _single_turn(row: Mapping[str, Json], question: str, answer: str, where: str) -> tuple[Message, ...]:
    for name in (question, answer):
        if not row[name].strip():
            raise DataError("the text is empty", where=f"{where} {name}")
    asked = row[question]
    if question == "instruction" and isinstance(row.get("input"), str) and row["input"].strip():
        asked = f"{asked}\n\n{row['input']}"
    reply = Message(role="assistant", content=row[answer], reasoning=_reasoning(row))
    return (Message(role="user", content=asked), reply)


def _messages(
    items: Sequence[Json], role_field: str, text_field: str, where: str, list_field: str
) -> tuple[Message, ...]:
    if not items:
        raise DataError("the list is empty", where=f"{where} {list_field}")
    turns: list[_Turn] = []
    for index, item in enumerate(items):
        turns.extend(_turns(item, role_field, text_field, f"{where} {list_field}[{index}]"))
    return tuple(turn.message for turn in _results_in_call_order(turns))


def _turns(item: Json, role_field: str, text_field: str, where: str) -> Iterator[_Turn]:
    if not isinstance(item, Mapping):
        raise DataError("the message isn't an object", where=where, hint=f"expected `{role_field}` and `{text_field}`")
    # Hybrids of the two naming schemes are common, so either pair of names is read.
    raw_role = item.get(role_field, item.get("role", item.get("from")))
    role = ROLES.get(raw_role) if isinstance(raw_role, str) else None
    if role is None:
        raise DataError(
            f"{raw_role!r} is no known role", where=f"{where}.{role_field}", hint=f"known: {', '.join(ROLES)}"
        )
    content = item.get(text_field, item.get("content", item.get("value")))
    if role == "tool":
        for text in _tool_texts(content, f"{where}.{text_field}"):
            yield _Turn(Message(role=role, content=text), result_of=item.get("tool_call_id"))
        return
    if raw_role == "function_call":  # the text itself is the call
        calls, content = _decoded(content, f"{where}.{text_field}"), ""
    else:
        calls = item.get("tool_calls") or item.get("function_call")
    calls = _decoded(calls, f"{where}.tool_calls") or []
    calls = [calls] if isinstance(calls, Mapping) else calls
    if not isinstance(calls, list):
        raise DataError("the calls aren't a list", where=f"{where}.tool_calls")
    message = Message(
        role=role,
        content=_text(content, f"{where}.{text_field}"),
        reasoning=_reasoning(item) if role == "assistant" else None,
        tool_calls=tuple(tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)),
    )
    yield _Turn(message, call_ids=tuple(_call_id(call) for call in calls))


def _reasoning(item: Mapping[str, Json]) -> str | None:
    """The reasoning field; exports write an empty string where there was none."""
    for name in REASONING_FIELDS:
        value = item.get(name)
        if isinstance(value, str) and value.strip():
            return value
    return None


def _text(content: Json, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "".join(str(part["text"]) for part in content)
    raise DataError("the content isn't text", where=where, hint="only text and lists of text parts are supported")


def _tool_texts(content: Json, where: str) -> list[str]:
    """The texts of one tool message: several where a list bundles the results of parallel calls."""
    if isinstance(content, Mapping):
        return [json.dumps(content, ensure_ascii=False)]
    if (
        isinstance(content, list)
        and content
        and all(isinstance(part, Mapping) and "output" in part for part in content)
    ):
        return [text for part in content for text in _tool_texts(part["output"], where)]
    return [_text(content, where)]


def _call_id(call: Mapping[str, Json]) -> str:
    return str(call.get("id") or call.get("tool_call_id") or "")


def tool_call(call: Json, where: str) -> ToolCall:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise DataError("the call has no name", where=where, hint="expected `name` and `arguments`")
    arguments = function.get("arguments", function.get("parameters"))
    if arguments in ("", None):
        arguments = {}
    arguments = _decoded(_decoded(arguments, where), where)  # some exports encode twice; a call never should be
    if not isinstance(arguments, Mapping):
        raise DataError("the arguments aren't an object", where=f"{where}.arguments", hint="give a JSON object")
    return ToolCall(name=function["name"], arguments=dict(arguments))


def _decoded(value: Json, where: str) -> Json:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the text isn't valid JSON: {error}", where=where) from error


def _tools(value: Json, where: str) -> tuple[ToolSchema, ...]:
    tools = _decoded(value, where) if value != "" else None
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise DataError("the tools aren't a list", where=where, hint="give a list of function schemas")
    return tuple(tool_schema(tool, f"{where}[{index}]") for index, tool in enumerate(tools))


def tool_schema(tool: Json, where: str) -> ToolSchema:
    """A tool schema in OpenAI's nested or in the flat form. Raises DataError when it has no name."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        raise DataError("the tool isn't an object", where=where)
    known = {k: v for k, v in function.items() if k in ("name", "description", "parameters") and v is not None}
    try:
        return ToolSchema.model_validate(known)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(str(first["msg"]), where=".".join([where, *map(str, first["loc"])])) from error


def _results_in_call_order(turns: Sequence[_Turn]) -> list[_Turn]:
    """The templates carry no call ids, so each run of tool results is put in the order of the calls before it."""
    ordered = list(turns)
    for index, turn in enumerate(turns):
        end = index + 1
        while end < len(turns) and turns[end].message.role == "tool":
            end += 1
        results = turns[index + 1 : end]
        place = {call_id: position for position, call_id in enumerate(turn.call_ids) if call_id}
        if results and all(result.result_of in place for result in results):
            ordered[index + 1 : end] = sorted(results, key=lambda result: place[str(result.result_of)])
    return ordered
