r"""What counts as the answer in a response: one declared policy, as pure functions.

1. Only text after the last `</think>` counts. A think block that is still open there means there is no answer.
2. Where a `\boxed{}` was opened, the last one is the answer. If its braces never close, there is no answer: an
   earlier box is not taken instead, and two boxes never become a set.
"""

from __future__ import annotations

from rufus_core.data.boxed import OPEN_BOX, last_boxed


def answer_text(text: str) -> str | None:
    """The text after the last closed think block, stripped; None if a think block is left open."""
    tail = text.rpartition("</think>")[2]
    return None if "<think>" in tail else tail.strip()


def short_answer(text: str) -> str | None:
    r"""The last box where one was opened, else the whole text after thinking; None if neither holds an answer."""
    tail = answer_text(text)
    if tail is None:
        return None
    return last_boxed(tail) if OPEN_BOX.search(tail) else tail or None
