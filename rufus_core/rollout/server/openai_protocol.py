"""OpenAI's chat completions as a request, with the fields that SGLang adds to it."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from rufus_core.rollout.server.body import Input, Unsupported, UnsupportedList, neutral
from rufus_core.rollout.server.protocol import Rid, Stops
from rufus_core.types import Json, Message, ToolCall, ToolSchema


class TextPart(Input):
    type: Literal["text"]
    text: str


class FunctionCall(Input):
    name: str
    arguments: str | dict[str, Json] = "{}"


class ToolCallInput(Input):
    function: FunctionCall
    ignored: ClassVar[frozenset[str]] = frozenset({"id", "type", "index"})


class MessageInput(Input):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: list[TextPart] = Field(default_factory=list)
    reasoning_content: str | None = None
    tool_calls: list[ToolCallInput] = Field(default_factory=list)
    ignored: ClassVar[frozenset[str]] = frozenset({"name", "tool_call_id", "refusal", "audio", "annotations"})

    @field_validator("content", mode="before")
    @classmethod
    def _one_part(cls, value: Json) -> Json:
        return [{"type": "text", "text": value}] if isinstance(value, str) else value

    def message(self) -> Message:
        """Raises ValueError for arguments of a tool call that are no JSON object."""
        return Message(
            role="system" if self.role == "developer" else self.role,
            content="".join(part.text for part in self.content),
            reasoning=self.reasoning_content,
            tool_calls=tuple(
                ToolCall(name=call.function.name, arguments=_arguments(call.function)) for call in self.tool_calls
            ),
        )


class FunctionInput(Input):
    name: str = Field(min_length=1, max_length=256)
    description: str = ""
    parameters: dict[str, Json] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: Annotated[Json, neutral(None, False)] = None


class ToolInput(Input):
    type: Literal["function"] = "function"
    function: FunctionInput

    def schema_(self) -> ToolSchema:
        given = self.function
        return ToolSchema(name=given.name, description=given.description, parameters=given.parameters)


class StreamOptions(Input):
    include_usage: bool = False
    ignored: ClassVar[frozenset[str]] = frozenset({"continuous_usage_stats", "include_obfuscation"})


class ResponseFormat(Input):
    type: Literal["text", "json_object"]


class ChatInput(Stops):
    messages: list[MessageInput] = Field(min_length=1)
    model: str = ""
    tools: list[ToolInput] = Field(default_factory=list)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)
    return_token_ids: bool = False
    response_format: ResponseFormat | None = None
    rid: Rid | None = None

    tool_choice: Annotated[Json, neutral("auto", "none", None)] = None
    parallel_tool_calls: Annotated[Json, neutral(True, None)] = None
    separate_reasoning: Annotated[Json, neutral(True)] = True
    chat_template_kwargs: Annotated[Json, neutral(None, {})] = None
    continue_final_message: Annotated[Json, neutral(False)] = False
    min_tokens: Annotated[Json, neutral(0)] = 0
    functions: UnsupportedList = None
    function_call: Unsupported = None
    lora_path: Unsupported = None
    reasoning_effort: Unsupported = None
    return_hidden_states: Annotated[Json, neutral(False)] = False
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"user", "metadata", "store", "service_tier", "stream_reasoning", "priority", "safety_identifier",
         "prompt_cache_key", "extra_key", "cache_salt", "session_id"}
    )  # fmt: skip

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ")
        return self

    def conversation(self) -> tuple[list[Message], list[ToolSchema]]:
        """Raises ValueError as `MessageInput.message`."""
        tools = [] if self.tool_choice == "none" else [tool.schema_() for tool in self.tools]
        return [each.message() for each in self.messages], tools


def _arguments(function: FunctionCall) -> dict[str, Json]:
    arguments: Any = function.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the arguments of {function.name!r} are no JSON") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {function.name!r} are no JSON object")
    return arguments
