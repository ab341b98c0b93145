"""From messages to token ids and back. Nothing here ever renders a policy's own tokens a second time (GYM-14..16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from rufus_core.data.tool_calls import MalformedCall, parse_calls, without_calls
from rufus_core.errors import TemplateError
from rufus_core.types import Json, Message, ToolCall, ToolSchema

# GLM has no end-of-turn token: the next role's marker ends a turn.
_GLM_STOPS = ("<|user|>", "<|observation|>", "<|endoftext|>")
_MARK_TURNS = "wrap each assistant turn of the template in {% generation %} ... {% endgeneration %}"
_KEEP_TURNS = "let the template show every assistant message as it was, whatever follows it"


def load_chat(path: Path) -> ChatFormat:
    """The chat format of a policy on disk, without its weights."""
    return ChatFormat(AutoTokenizer.from_pretrained(path, trust_remote_code=False))


@dataclass(frozen=True, slots=True)
class MaskedIds:
    """Token ids of one supervised example; `loss_mask` is 1 on tokens that carry loss (SPLIT-05, SPLIT-06)."""

    token_ids: list[int]
    loss_mask: list[int]


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """One sampled assistant turn. `actions` are its tool calls in order; `message` holds the well-formed ones."""

    message: Message
    actions: tuple[ToolCall | MalformedCall, ...] = ()


class ChatFormat:
    """A tokenizer and its chat template, which is checked for what training needs wherever it is used for that.

    Raises:
        TemplateError: the tokenizer has no chat template or no token that ends a turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise TemplateError("the tokenizer has no chat template", hint="add chat_template.jinja to the base model")
        self.tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        stops = [vocabulary[token] for token in _GLM_STOPS if token in vocabulary]
        if tokenizer.eos_token_id is not None:
            stops.append(tokenizer.eos_token_id)
        if not stops:
            raise TemplateError("no token of the tokenizer ends a turn", hint="set the tokenizer's eos_token")
        self.stop_token_ids = tuple(dict.fromkeys(stops))
        tags = [vocabulary.get(tag) for tag in ("<think>", "</think>")]
        self._think_ids = (tags[0], tags[1]) if None not in tags else None
        control = {*tokenizer.all_special_tokens, *tokenizer.convert_ids_to_tokens(stops)}
        self._control_tokens = sorted((t for t in control if len(t) > 2), key=lambda t: (-len(t), t))

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

        Only assistant messages can carry loss, and with each the token that ends it (SLM-04).

        Raises:
            TemplateError: the template does not mark exactly the assistant turns, each with its end, as generated, or
                leaves out what a supervised message says.
        """
        texts, all_spans = self._render([m for m, _, _ in examples], [t for _, _, t in examples], spans=True)
        encoded = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        rows = []
        for (messages, supervise, _), text, spans, ids, offsets in zip(
            examples, texts, all_spans, encoded["input_ids"], encoded["offset_mapping"], strict=True
        ):
            turns = [pair for pair in zip(messages, supervise, strict=True) if pair[0].role == "assistant"]
            if len(spans) != len(turns):
                raise TemplateError(
                    f"the chat template marks {len(spans)} generated spans for {len(turns)} assistant messages",
                    hint=_MARK_TURNS,
                )
            kept = [(span, turn) for span, (turn, supervised) in zip(spans, turns, strict=True) if supervised]
            for (start, end), turn in kept:
                self._check_shown(turn, text[start:end])
            mask = _mask(offsets, [span for span, _ in kept])
            num_ends = sum(flag and token in self.stop_token_ids for token, flag in zip(ids, mask, strict=True))
            if num_ends != len(kept) or (kept and all(mask)):
                raise TemplateError(
                    f"the chat template marks {num_ends} ends of turn as generated for {len(kept)} supervised messages",
                    hint=f"{_MARK_TURNS}, with the token that ends the turn inside",
                )
            rows.append(MaskedIds(list(ids), mask))
        return rows

    def tool_suffix_ids(self, results: Sequence[str], stop_id: int | None = None) -> list[int]:
        """The ids that follow a sampled turn when its tool calls were answered, up to the policy's next turn.

        `stop_id` is the token that ended the turn; where the template ends such a turn with another one, the suffix
        begins with that.

        Raises:
            TemplateError: the template marks no generation, or shows a turn otherwise once something follows it.
        """
        call = ToolCall(name="f", arguments={})
        turn = Message(role="assistant", reasoning="because", tool_calls=(call,) * len(results))
        return self._suffix(turn, [Message(role="tool", content=text) for text in results], stop_id)

    def user_suffix_ids(self, text: str, stop_id: int | None = None) -> list[int]:
        """The ids that follow a sampled turn when the user replies; otherwise as `tool_suffix_ids` (GYM-13)."""
        turn = Message(role="assistant", reasoning="because", content="y")
        return self._suffix(turn, [Message(role="user", content=text)], stop_id)

    def _suffix(self, turn: Message, replies: Sequence[Message], stop_id: int | None) -> list[int]:
        """Found by rendering a sample conversation: whatever the template puts after the assistant's turn."""
        history: list[Message] = [Message(role="user", content="x")]
        once, twice = [*history, turn, *replies], [*history, turn, *replies, turn, *replies]
        texts, spans = self._render([history, once, twice], [()] * 3, add_generation_prompt=True, spans=True)
        if [len(found) for found in spans] != [0, 1, 2]:
            raise TemplateError("the chat template doesn't mark what the assistant generates", hint=_MARK_TURNS)
        if not (texts[2].startswith(texts[1]) and texts[1].startswith(texts[0])):
            raise TemplateError("the chat template rewrites earlier turns when a later one is added", hint=_KEEP_TURNS)
        start, end = spans[1][0]
        self._check_shown(turn, texts[1][start:end])
        ids = self._encode(texts[1][start:])
        stop = next((i for i, token in enumerate(ids) if token in self.stop_token_ids), None)
        if stop is None or stop >= len(self._encode(texts[1][start:end])):
            raise TemplateError(
                "the chat template doesn't mark the token that ends an assistant turn as generated",
                hint=f"{_MARK_TURNS}, with the token that ends the turn inside",
            )
        return ids[stop:] if stop_id not in (None, ids[stop]) else ids[stop + 1 :]

    def _check_shown(self, message: Message, rendered: str) -> None:
        for part in (message.reasoning, message.content, *(call.name for call in message.tool_calls)):
            if part and self.neutralise(part).strip() not in rendered:
                raise TemplateError(f"the chat template drops {part[:40]!r} from an assistant turn", hint=_KEEP_TURNS)

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
            try:
                rendered, generated = render_jinja_template(
                    [[self._as_dict(message) for message in messages]],
                    tools=[self._schema_dict(schema) for schema in schemas] or None,
                    chat_template=self.tokenizer.chat_template,
                    return_assistant_tokens_mask=spans,
                    add_generation_prompt=add_generation_prompt,
                    **self.tokenizer.special_tokens_map,
                )
            except jinja2.TemplateError as error:
                raise TemplateError(f"the chat template can't show a conversation: {error}") from error
            if missing := [schema.name for schema in schemas if schema.name not in rendered[0]]:
                raise TemplateError(f"the chat template doesn't show the tool {missing[0]!r}")
            texts.append(rendered[0])
            indices.append([tuple(span) for span in generated[0]] if spans else [])
        return texts, indices

    def _as_dict(self, message: Message) -> dict[str, Any]:
        data: dict[str, Any] = {"role": message.role, "content": self.neutralise(message.content)}
        if message.reasoning is not None:
            data["reasoning_content"] = self.neutralise(message.reasoning)
        if message.tool_calls:
            data["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": self._neutral(call.arguments)}}
                for call in message.tool_calls
            ]
        return data

    def _schema_dict(self, schema: ToolSchema) -> dict[str, Any]:
        described = {"name": schema.name, "description": schema.description, "parameters": schema.parameters}
        return {"type": "function", "function": self._neutral(described)}

    def _neutral(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.neutralise(value)
        if isinstance(value, dict):
            return {self.neutralise(key): self._neutral(inner) for key, inner in value.items()}
        return [self._neutral(inner) for inner in value] if isinstance(value, list) else value

    def neutralise(self, text: str) -> str:
        """Text in which no control token of the tokenizer is left: a zero-width space breaks each one up.

        Problem files, tools and users must not be able to open or close a turn. Halves of a surrogate pair, which no
        tokenizer reads, become question marks.
        """
        text = text.encode(errors="replace").decode()
        for token in self._control_tokens:
            text = text.replace(token, token[0] + "\u200b" + token[1:])
        return text

    def truncate(self, text: str, most_tokens: int) -> str:
        """A tool's result cut to a number of tokens: head and tail stay, a marker stands between (GYM-24).

        Where not even the marker fits, the head alone stays.
        """
        text = self.neutralise(text)
        if len(text.encode()) <= most_tokens:  # a token is at least one byte
            return text
        offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        if len(offsets) <= most_tokens:
            return text
        room = most_tokens - len(self._encode(_cut_marker(len(text))))
        if room < 2:
            return text[: offsets[most_tokens][0]]
        head = offsets[room // 2][0]
        tail = offsets[len(offsets) - (room - room // 2) - 1][1]
        return text[:head] + _cut_marker(tail - head) + text[tail:]

    # -- ids to messages ---------------------------------------------------------------------------------------------

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedTurn:
        """Read a sampled turn: reasoning, content and tool calls. A malformed call stays as it was sampled.

        Content is what follows the last closed think block; a turn that leaves one open has none.
        """
        ids = list(sampled_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        text = self.decode(ids)
        reasoning, closed, rest = text.rpartition("</think>")
        if opened := "<think>" in rest:
            reasoning, rest = text, ""
        actions = parse_calls(rest, tools) if tools else ()
        message = Message(
            role="assistant",
            content=(without_calls(rest) if tools else rest).strip(),
            reasoning=reasoning.replace("<think>", "", 1).strip() if (opened or closed) else None,
            tool_calls=tuple(action for action in actions if isinstance(action, ToolCall)),
        )
        return ParsedTurn(message, actions)

    def num_final_tokens(self, sampled_ids: Sequence[int]) -> int:
        """Tokens of a turn after its last closed think block; 0 where one is left open."""
        ids = list(sampled_ids)
        if self._think_ids is None:  # the tags are text to this tokenizer
            tail = self.decode(ids).rpartition("</think>")[2]
            return 0 if "<think>" in tail else len(self._encode(tail))
        opening, closing = self._think_ids
        tail_ids = ids[len(ids) - ids[::-1].index(closing) :] if closing in ids else ids
        return 0 if opening in tail_ids else len(tail_ids)


def _cut_marker(num_characters: int) -> str:
    return f"\n[{num_characters} characters cut]\n"


def _mask(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[int]:
    mask, span_index = [], 0
    for start, _ in offsets:
        while span_index < len(spans) and start >= spans[span_index][1]:
            span_index += 1
        mask.append(int(span_index < len(spans) and start >= spans[span_index][0]))
    return mask
