"""Tool calls as a policy writes them: GLM's key/value form or a JSON object. What is malformed is never repaired."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jsonschema

from rufus_core.types import Json, ToolCall, ToolSchema

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
# A key holds no "<", so an unfinished argument is refused in one pass over the text.
_ARGUMENT = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_MOST_NESTING = 32  # what serialises an argument later must not run out of stack


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A tool call that can't be dispatched: unparsable, an unknown tool, or arguments that fail the schema."""

    reason: str


def parse_calls(text: str, tools: Sequence[ToolSchema]) -> tuple[ToolCall | MalformedCall, ...]:
    """Every call of a turn in order; a policy's mistake is a MalformedCall and never an exception (GYM-16)."""
    known = {tool.name: tool for tool in tools}
    actions: list[ToolCall | MalformedCall] = []
    for match in _CALL.finditer(text):
        try:
            if not match.group(2):
                raise ValueError("unterminated tool call")
            actions.append(_parse_call(match.group(1).strip(), known))
        except ValueError as error:
            actions.append(MalformedCall(str(error)))
    return tuple(actions)


def without_calls(text: str) -> str:
    return _CALL.sub("", text)


def _parse_call(body: str, known: Mapping[str, ToolSchema]) -> ToolCall:
    if body.startswith("{"):
        data = _load(body, "tool call")
        if "name" not in data:
            raise ValueError("tool call has no name")
        schema, arguments = _known(data["name"], known), data.get("arguments", {})
    else:
        name, _, tail = body.partition("\n")
        schema = _known(name.strip(), known)
        arguments = _key_values(tail, schema)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are not an object")
    _check_plain(arguments)
    problem = next(iter(jsonschema.Draft202012Validator(schema.parameters).iter_errors(arguments)), None)
    if problem is not None:
        raise ValueError(problem.message[:200])
    return ToolCall(name=schema.name, arguments=arguments)


def _known(name: object, known: Mapping[str, ToolSchema]) -> ToolSchema:
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"unknown tool {str(name)[:60]!r}")
    return known[name]


def _key_values(text: str, schema: ToolSchema) -> dict[str, Json]:
    arguments, end = {}, 0
    while match := _ARGUMENT.match(text, end):
        key, value = match.groups()
        arguments[key] = _value(value, schema, key)
        end = match.end()
    if text[end:].strip():
        raise ValueError("text between the arguments of a tool call")
    return arguments


def _value(text: str, schema: ToolSchema, key: str) -> Json:
    """GLM writes strings raw and everything else as JSON; the schema says which one an argument is."""
    declared = schema.parameters.get("properties", {}).get(key)
    kind = declared.get("type", "string") if isinstance(declared, dict) else "string"
    if kind == "string":
        return text
    try:
        return _load(text, f"argument {key!r}")
    except ValueError:
        if "string" in kind:  # one of several types
            return text
        raise


def _load(text: str, what: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not valid JSON") from error


def _check_plain(arguments: dict[str, Json]) -> None:
    """Refuse what Python reads as JSON and nothing else does: NaN, halves of a surrogate pair, towers of brackets."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        nesting = _nesting(arguments)
    except (ValueError, RecursionError) as error:
        raise ValueError("arguments are not plain JSON") from error
    if nesting > _MOST_NESTING:
        raise ValueError("arguments are nested too deeply")


def _nesting(value: Json) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_nesting, inner), default=0)
