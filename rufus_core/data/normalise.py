"""Repair passes that bring a source's records into the common form (NORM-01..03)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from rufus_core.data.hermes import unwrap_hermes
from rufus_core.data.split import ends_response
from rufus_core.types import Conversation, Message

Repair = Callable[[Conversation], Conversation]

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
# End-of-turn marks of common chat templates, left behind at the end of a reply by careless exports.
END_MARKS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "</s>", "<|user|>", "<|observation|>")
CALCULATOR = re.compile(r"<<[^<>\n]*>>")  # GSM8K's annotations
NUMERIC_ANSWER = re.compile(r"\n*####[ \t]*\$?(-?[\d,]*\.?\d+)%?\s*$")


def system_prompts(conversation: Conversation) -> Conversation:
    """Merge the leading system messages into one and drop empty ones."""
    messages = conversation.messages
    num_leading = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    texts = [m.content.strip() for m in messages[:num_leading] if m.content.strip()]
    if num_leading <= 1 and len(texts) == num_leading:
        return conversation
    merged = (Message(role="system", content="\n\n".join(texts)),) if texts else ()
    return _with(conversation, merged + messages[num_leading:])


def answer_suffixes(conversation: Conversation) -> Conversation:
    """Remove end-of-turn marks after a reply; turn GSM8K's `#### 18` into `\\boxed{18}`."""
    return _each_reply(conversation, _clean_suffix)


def reasoning_tags(conversation: Conversation) -> Conversation:
    """Move an inline think block to `reasoning`, also where its opening tag is missing or doubled."""
    return _each_reply(conversation, _extract_reasoning)


def incomplete_final_turns(conversation: Conversation) -> Conversation:
    """Cut everything after the last complete response: a request without a reply, a tool chain without an end, a
    reply that is empty or stops inside its think block."""
    messages = conversation.messages
    for end in range(len(messages), 0, -1):
        if ends_response(messages, end - 1) and _complete(messages[end - 1]):
            return _with(conversation, messages[:end])
    return _with(conversation, ())


REPAIRS: dict[str, Repair] = {
    "hermes_tools": unwrap_hermes,
    "system_prompts": system_prompts,
    "reasoning_tags": reasoning_tags,
    "answer_suffixes": answer_suffixes,
    "incomplete_final_turns": incomplete_final_turns,
}


def normalise(
    conversations: Iterable[Conversation], counts: Counter[str], repairs: Mapping[str, Repair] = REPAIRS
) -> Iterator[Conversation]:
    """Apply every repair in order; drop a record without an assistant response (NORM-03).

    `counts` gains, for each repair, the number of records it changed, and `dropped_no_response`.
    """
    for conversation in conversations:
        for name, repair in repairs.items():
            repaired = repair(conversation)
            counts[name] += repaired != conversation
            conversation = repaired
        if any(message.role == "assistant" for message in conversation.messages):
            yield conversation
        else:
            counts["dropped_no_response"] += 1


def _with(conversation: Conversation, messages: tuple[Message, ...]) -> Conversation:
    return conversation.model_copy(update={"messages": messages})


def _each_reply(conversation: Conversation, change: Callable[[Message], Message]) -> Conversation:
    return _with(conversation, tuple(change(m) if m.role == "assistant" else m for m in conversation.messages))


def _clean_suffix(message: Message) -> Message:
    content = message.content
    while (stripped := content.rstrip()).endswith(END_MARKS):
        mark = next(mark for mark in END_MARKS if stripped.endswith(mark))
        content = stripped.removesuffix(mark).rstrip()
    if answer := NUMERIC_ANSWER.search(content):
        body = CALCULATOR.sub("", content[: answer.start()])
        content = f"{body}\n\\boxed{{{answer.group(1).replace(',', '')}}}".lstrip("\n")
    return message if content == message.content else message.model_copy(update={"content": content})


def _extract_reasoning(message: Message) -> Message:
    """The text up to the first closing tag is reasoning, unless a reasoning field is there already."""
    if THINK_CLOSE not in message.content:
        return message
    inside, _, answer = message.content.partition(THINK_CLOSE)
    before, opened, thought = inside.rpartition(THINK_OPEN)
    if opened and before.replace(THINK_OPEN, "").strip():
        return message  # a block in the middle of an answer: left for the validation
    thought = thought.strip()
    if message.reasoning and thought and thought != message.reasoning.strip():
        return message  # two different thoughts
    return message.model_copy(update={"reasoning": message.reasoning or thought or None, "content": answer.strip()})


def _complete(message: Message) -> bool:
    unclosed = message.content.count(THINK_OPEN) > message.content.count(THINK_CLOSE)
    return bool(message.content.strip() or message.tool_calls) and not unclosed
