"""From messages to token ids and back. Nothing here ever renders a policy's own tokens a second time (GYM-14..16)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from rufus_core.errors import TemplateError
from rufus_core.types import Message, ToolCall, ToolSchema

_GLM_STOPS = (
    "<|user|>",
    "<|observation|>",
    "<|endoftext|>",
)  # GLM has no end-of-turn token: the next role's marker stops
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def load_chat(path: Path) -> ChatFormat:
    """The chat format of a policy on disk, without its weights."""
    return ChatFormat(AutoTokenizer.from_pretrained(path, trust_remote_code=False))


@dataclass(frozen=True, slots=True)
class MaskedIds:
    """Token ids of one supervised example; `loss_mask` is 1 on tokens that carry loss (SPLIT-05, SPLIT-06)."""

    token_ids: list[int]
    loss_mask: list[int]


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A tool call that can't be dispatched: unparsable, an unknown tool, or arguments that fail the schema."""

    reason: str


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """One sampled assistant turn. `actions` are its tool calls in order; `message` holds the well-formed ones."""

    message: Message
    actions: tuple[ToolCall | MalformedCall, ...] = ()


class ChatFormat:
    """A tokenizer's chat template, checked once for what training needs.

    Raises:
        TemplateError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise TemplateError("the tokenizer has no chat template", hint="add chat_template.jinja to the base model")
        self.tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        stops = [vocabulary[token] for token in _GLM_STOPS if token in vocabulary]
        if tokenizer.eos_token_id is not None:
            stops.append(tokenizer.eos_token_id)
        self.stop_token_ids = tuple(dict.fromkeys(stops))
        self._special = sorted((t for t in tokenizer.all_special_tokens if len(t) > 2), key=len, reverse=True)

    # -- messages to ids ---------------------------------------------------------------------------------------------

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """Ids of a prompt, ending where the policy's turn begins."""
        text, _ = self._render([messages], [tools], add_generation_prompt=True)
        return self._encode(text[0])

    def example_ids(
        self,
        examples: Sequence[tuple[Sequence[Message], Sequence[bool], Sequence[ToolSchema]]],
    ) -> list[MaskedIds]:
        """Ids and loss masks of supervised examples, each `(messages, supervise, tools)`, one flag a message.

        Raises:
            TemplateError: the template marks no generation, or not one span for each assistant message.
        """
        texts, all_spans = self._render([m for m, _, _ in examples], [t for _, _, t in examples], spans=True)
        encoded = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        rows = []
        for (messages, supervise, _), spans, ids, offsets in zip(
            examples, all_spans, encoded["input_ids"], encoded["offset_mapping"], strict=True
        ):
            wanted = [flag for message, flag in zip(messages, supervise, strict=True) if message.role == "assistant"]
            if len(spans) != len(wanted):
                raise TemplateError(
                    f"the chat template marks {len(spans)} generated spans for {len(wanted)} assistant messages",
                    hint="wrap each assistant turn of the template in {% generation %} ... {% endgeneration %}",
                )
            kept = [span for span, flag in zip(spans, wanted, strict=True) if flag]
            rows.append(MaskedIds(list(ids), _mask(offsets, kept)))
        return rows

    def tool_suffix_ids(self, results: Sequence[str]) -> list[int]:
        """The ids that follow a sampled turn when its tool calls were answered, up to the policy's next turn.

        Found by rendering a sample conversation: whatever the template puts after the assistant's generated span.
        """
        call = Message(role="assistant", tool_calls=(ToolCall(name="f", arguments={}),) * len(results))
        return self._suffix([call, *(Message(role="tool", content=text) for text in results)])

    def user_suffix_ids(self, text: str) -> list[int]:
        """The ids that follow a sampled turn when the user replies, up to the policy's next turn."""
        return self._suffix([Message(role="assistant", content="y"), Message(role="user", content=text)])

    def _suffix(self, tail: Sequence[Message]) -> list[int]:
        texts, spans = self._render(
            [[Message(role="user", content="x"), *tail]], [()], add_generation_prompt=True, spans=True
        )
        if len(spans[0]) != 1:
            raise TemplateError(
                "the chat template has no generation marks, so the text after an assistant turn can't be told",
                hint="wrap each assistant turn of the template in {% generation %} ... {% endgeneration %}",
            )
        return self._encode(texts[0][spans[0][0][1] :])

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _render(
        self,
        conversations: Sequence[Sequence[Message]],
        tools: Sequence[Sequence[ToolSchema]],
        *,
        add_generation_prompt: bool = False,
        spans: bool = False,
    ) -> tuple[list[str], list[list[tuple[int, int]]]]:
        texts, indices = [], []
        for messages, schemas in zip(conversations, tools, strict=True):
            rendered, generated = render_jinja_template(
                [[self._as_dict(message) for message in messages]],
                tools=[_schema_dict(schema) for schema in schemas] or None,
                chat_template=self.tokenizer.chat_template,
                return_assistant_tokens_mask=spans,
                add_generation_prompt=add_generation_prompt,
                **self.tokenizer.special_tokens_map,
            )
            texts.append(rendered[0])
            indices.append([tuple(span) for span in generated[0]] if spans else [])
        return texts, indices

    def _as_dict(self, message: Message) -> dict[str, Any]:
        data: dict[str, Any] = {"role": message.role, "content": self.neutralise(message.content)}
        if message.reasoning is not None:
            data["reasoning_content"] = self.neutralise(message.reasoning)
        if message.tool_calls:
            data["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
        return data

    def neutralise(self, text: str) -> str:
        """Text in which no control token of the tokenizer is left: a zero-width space breaks each one up.

        Problem files, tools and users must not be able to open or close a turn.
        """
        for token in self._special:
            if token in text:
                text = text.replace(token, token[0] + "\u200b" + token[1:])
        return text

    def truncate(self, text: str, most_tokens: int) -> str:
        """A tool's result cut to a number of tokens: head and tail stay, a marker stands between (GYM-24)."""
        if len(text) <= most_tokens:  # a token is at least one character
            return text
        offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        if len(offsets) <= most_tokens:
            return text
        head = offsets[most_tokens // 2][0]
        tail = offsets[len(offsets) - (most_tokens - most_tokens // 2)][0]
        return f"{text[:head]}\n[... {tail - head} characters left out ...]\n{text[tail:]}"

    # -- ids to messages ---------------------------------------------------------------------------------------------

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedTurn:
        """Read a sampled turn: reasoning, content and tool calls. A malformed call stays as it was sampled."""
        ids = list(sampled_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        text = self.decode(ids)
        reasoning, closed, rest = text.rpartition("</think>")
        opened = "<think>" in text
        if not closed:  # an unclosed think block is no answer
            reasoning, rest = (text, "") if opened else ("", text)
        actions = _actions(rest, tools) if tools else ()
        message = Message(
            role="assistant",
            content=(_CALL.sub("", rest) if tools else rest).strip(),
            reasoning=reasoning.replace("<think>", "", 1).strip() if (opened or closed) else None,
            tool_calls=tuple(action for action in actions if isinstance(action, ToolCall)),
        )
        return ParsedTurn(message, actions)


def _actions(text: str, tools: Sequence[ToolSchema]) -> tuple[ToolCall | MalformedCall, ...]:
    known = {tool.name: tool for tool in tools}
    actions: list[ToolCall | MalformedCall] = []
    for match in _CALL.finditer(text):
        try:
            actions.append(_parse_call(match.group(1), bool(match.group(2)), known))
        except ValueError as error:
            actions.append(MalformedCall(str(error)))
    return tuple(actions)


def _mask(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[int]:
    mask, span_index = [], 0
    for start, _ in offsets:
        while span_index < len(spans) and start >= spans[span_index][1]:
            span_index += 1
        mask.append(int(span_index < len(spans) and start >= spans[span_index][0]))
    return mask


def _schema_dict(schema: ToolSchema) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": schema.name, "description": schema.description, "parameters": schema.parameters},
    }


def _parse_call(body: str, terminated: bool, known: dict[str, ToolSchema]) -> ToolCall:
    """One tool call in GLM's key/value form or as a JSON object. Raises ValueError with the reason it is malformed."""
    if not terminated:
        raise ValueError("unterminated tool call")
    body = body.strip()
    if body.startswith("{"):
        try:
            data = json.loads(body)
            name, arguments = data["name"], data.get("arguments", {})
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError("tool call is not valid JSON") from error
        schema = _known(name, known)
    else:
        name, _, tail = body.partition("\n")
        schema = _known(name.strip(), known)
        arguments, end = {}, 0
        for match in _ARGUMENT.finditer(tail):
            if match.start() != end:
                break
            arguments[match.group(1)] = _value(match.group(2), schema, match.group(1))
            end = match.end()
        if tail[end:].strip():
            raise ValueError("text between the arguments of a tool call")
    problem = next(iter(jsonschema.Draft202012Validator(schema.parameters).iter_errors(arguments)), None)
    if problem is not None:
        raise ValueError(problem.message[:200])
    return ToolCall(name=schema.name, arguments=arguments)


def _known(name: object, known: dict[str, ToolSchema]) -> ToolSchema:
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"unknown tool {str(name)[:60]!r}")
    return known[name]


def _value(text: str, schema: ToolSchema, key: str) -> Any:
    """GLM writes strings raw and everything else as JSON; the schema says which one an argument is."""
    kind = schema.parameters.get("properties", {}).get(key, {}).get("type", "string")
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"argument {key!r} is not {kind}") from error
