"""Refuses supervised examples that can't be rendered or learned from (VALID-01..03)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile

from rufus_core.data.split import SupervisedExample, is_request
from rufus_core.types import Message

THINK_TAG = re.compile(r"</?think>")
# What a chat template writes around turns and calls; in a reply's text it is the debris of another format.
CONTROL_TAG = re.compile(r"<\|(system|user|assistant|observation)\|>|\[gMASK\]|<sop>|</?tool_call>")


def faults(example: SupervisedExample) -> list[str]:
    """The reasons why an example is refused, at most once each; empty when it passes."""
    found = [*_tag_faults(example.messages), *_role_faults(example.messages), *_mask_faults(example)]
    return list(dict.fromkeys(found))


def valid(
    examples: Iterable[SupervisedExample],
    counts: Counter[str],
    count_tokens: Callable[[SupervisedExample], int],
    cap_tokens: int | None,
) -> Iterator[SupervisedExample]:
    """Yield the examples that pass. One over the cap is dropped, never cut: cutting would lose its answer (VALID-03).

    `count_tokens` measures the output of the chat template, tools and delimiters included (VALID-02); without a cap
    it isn't called. `counts` gains `valid`, `over_cap`, `refused`, and each reason once per example.
    """
    for example in examples:
        reasons = faults(example)
        if reasons:
            counts["refused"] += 1
            counts.update(reasons)
        elif cap_tokens is not None and count_tokens(example) > cap_tokens:
            counts["over_cap"] += 1
        else:
            counts["valid"] += 1
            yield example


def _tag_faults(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if message.role != "assistant":
            continue
        if CONTROL_TAG.search(message.content) or CONTROL_TAG.search(message.reasoning or ""):
            yield "control tag in a reply"
        # The reasoning is rendered between tags of its own, so a tag inside it can't balance.
        if THINK_TAG.search(message.reasoning or "") or not _balanced(message.content):
            yield "unbalanced think tags"


def _balanced(text: str) -> bool:
    tags = THINK_TAG.findall(text)
    return tags == ["<think>", "</think>"] * (len(tags) // 2)


def _role_faults(messages: Sequence[Message]) -> Iterator[str]:
    """One optional system message, then user turns and responses; results only after calls, one for each call."""
    body = list(messages[1:] if messages and messages[0].role == "system" else messages)
    if not body or body[0].role != "user":
        yield "no user message at the start"
    if not messages or messages[-1].role != "assistant":
        yield "no assistant message at the end"
    for previous, message in zip([None, *body], body, strict=False):
        before = previous.role if previous is not None else None
        if message.role == "system":
            yield "system message after the start"
        elif message.role == "assistant" and before == "assistant":
            yield "two assistant messages in a row"
        elif message.role == "tool" and before not in ("assistant", "tool"):
            yield "tool result without a call"
        elif before == "tool" and is_request(message):
            yield "request in the middle of a tool chain"
        if message.tool_calls and message.role != "assistant":
            yield "call outside an assistant message"
    for index, message in enumerate(body):
        num_results = sum(1 for _ in takewhile(lambda m: m.role == "tool", body[index + 1 :]))
        if message.role == "assistant" and num_results not in (0, len(message.tool_calls)):
            yield "results don't match the calls" if message.tool_calls else "tool result without a call"


def _mask_faults(example: SupervisedExample) -> Iterator[str]:
    messages, supervise = example.messages, example.supervise
    if len(supervise) != len(messages):
        yield "mask of another length"
        return
    if not any(supervise):
        yield "nothing supervised"
    first_user = next((i for i, m in enumerate(messages) if m.role == "user"), 0)
    request = max((i for i, m in enumerate(messages) if i == first_user or is_request(m)), default=0)
    for index, (message, loss) in enumerate(zip(messages, supervise, strict=True)):
        if loss and message.role != "assistant":
            yield f"loss on a {message.role} message"
        elif loss and not message.content.strip() and not message.tool_calls:
            yield "loss on an empty reply"
        if index < request and (loss or message.reasoning):
            yield "loss or reasoning before the last request"
