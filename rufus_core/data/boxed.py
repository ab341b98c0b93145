r"""Reading `\boxed{}`, in data and in responses alike."""

from __future__ import annotations

import re

OPEN_BOX = re.compile(r"\\boxed\s*\{")


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`, stripped; None if there is none or its braces never close.

    `\{` and `\}` are signs of the answer, not grouping.
    """
    openings = list(OPEN_BOX.finditer(text))
    if not openings:
        return None
    start = openings[-1].end()
    depth, position = 1, start
    while position < len(text):
        sign = text[position]
        if sign == "\\":
            position += 2
            continue
        if sign == "{":
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                return text[start:position].strip()
        position += 1
    return None
