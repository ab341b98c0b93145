"""Cuts a conversation into supervised examples with interleaved thinking (SPLIT-01..07)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rufus_core.types import Category, Conversation, Message, ToolSchema

# User-role text that isn't a request: blocks that agent scaffolds wrap around results and reminders ...
INJECTED_BLOCK = re.compile(
    r"<(tool_response|tool_result|function_results|observation|system-reminder|system_reminder|environment_details"
    r"|environment_context|environment_feedback)\b[^>]*>.*?</\1>",
    re.DOTALL | re.IGNORECASE,
)
# ... and openings that scaffolds without blocks use.
INJECTED_OPENING = re.compile(
    r"(observation:|tool results?:|execution result of \[|new terminal output:|current terminal (state|screen):)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SupervisedExample:
    """One training example. `supervise[i]` says whether message i carries loss; None reasoning was stripped."""

    messages: tuple[Message, ...]
    supervise: tuple[bool, ...]
    tools: tuple[ToolSchema, ...]
    source: str
    category: Category


def ends_response(messages: Sequence[Message], index: int) -> bool:
    """Whether message `index` ends a response: an assistant message that isn't a call followed by its result."""
    if messages[index].role != "assistant":
        return False
    followed_by_result = index + 1 < len(messages) and messages[index + 1].role == "tool"
    return not (messages[index].tool_calls and followed_by_result)


def is_request(message: Message) -> bool:
    """Whether a message is a real user request, and not a tool result or a reminder in a user-role turn."""
    if message.role != "user":
        return False
    text = INJECTED_BLOCK.sub("", message.content).strip()
    return bool(text) and not INJECTED_OPENING.match(text)


def split(
    conversation: Conversation, counts: Counter[str], is_request: Callable[[Message], bool] = is_request
) -> Iterator[SupervisedExample]:
    """Yield one example for each real request that got a response (SPLIT-02).

    Each example ends at the last response to its request. Where no real request stands between two response ends they
    stay in one example, so no assistant message is ever supervised twice (SPLIT-07). A conversation's first user
    message always counts as a request.

    Steps at and after the last request carry loss and keep their reasoning; a step whose reasoning is an empty string
    does so with an empty think block. A step without reasoning (None) gets an empty think block and loss when the whole
    conversation is free of reasoning, and no loss otherwise. Earlier assistant messages lose their reasoning and
    carry no loss (SPLIT-04, SPLIT-05).

    `counts` gains `examples`, `merged_responses`, `non_thinking_steps`, `masked_steps` and `unsupervised_examples`
    (left out because no step carries loss).
    """
    messages = conversation.messages
    thinking = any(message.reasoning for message in messages)
    for request, end, num_ends in _spans(messages, is_request):
        counts["merged_responses"] += num_ends - 1
        history = [_stripped(message) for message in messages[:request]]
        target = [_with_think_block(message, thinking) for message in messages[request : end + 1]]
        supervise = [message.role == "assistant" and message.reasoning is not None for message in target]
        missing = sum(m.role == "assistant" and m.reasoning is None for m in messages[request : end + 1])
        counts["masked_steps" if thinking else "non_thinking_steps"] += missing
        if not any(supervise):
            counts["unsupervised_examples"] += 1
            continue
        counts["examples"] += 1
        yield SupervisedExample(
            messages=(*history, *target),
            supervise=(*(False for _ in history), *supervise),
            tools=conversation.tools,
            source=conversation.source,
            category=conversation.category,
        )


def _spans(messages: Sequence[Message], is_request: Callable[[Message], bool]) -> Iterator[tuple[int, int, int]]:
    """For each answered request: its index, the index of its last response end, and the number of response ends."""
    first_user = next((i for i, message in enumerate(messages) if message.role == "user"), None)
    requests = [i for i, message in enumerate(messages) if i == first_user or is_request(message)]
    for request, following in pairwise([*requests, len(messages)]):
        ends = [i for i in range(request, following) if ends_response(messages, i)]
        if ends:
            yield request, ends[-1], len(ends)


def _stripped(message: Message) -> Message:
    return message.model_copy(update={"reasoning": None})


def _with_think_block(message: Message, thinking: bool) -> Message:
    if message.role == "assistant" and message.reasoning is None and not thinking:
        return message.model_copy(update={"reasoning": ""})
    return message
