r"""What counts as the answer in a response: one function, and a policy that each verifier declares.

1. Only text after the last `</think>` counts. A think block that is still open there means there is no answer.
2. Of boxes and of fenced python blocks the last one is the answer. If it never closes there is no answer: an earlier
   one is not taken instead, and two never become a set.
3. An empty answer is none.
"""

from __future__ import annotations

import enum
import re

from rufus_core.data.boxed import OPEN_BOX, last_boxed

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_PYTHON = ("python", "python3", "py")


class Extraction(enum.StrEnum):
    """Which part of the text after thinking is the answer."""

    TEXT = "text"  # all of it
    BOX = "box"  # the content of the last `\boxed{}`
    BOX_OR_TEXT = "box_or_text"  # a box where one was opened, else all of it
    PYTHON_BLOCK = "python_block"  # the content of the last fenced python block (CRL-R1)


def extract(response: str | None, policy: Extraction) -> str | None:
    """The answer in a response; None where there is none. A response of None never came to its end."""
    tail = (response or "").rpartition("</think>")[2]
    if "<think>" in tail:
        return None
    match policy:
        case Extraction.TEXT:
            answer: str | None = tail.strip()
        case Extraction.BOX:
            answer = last_boxed(tail)
        case Extraction.BOX_OR_TEXT:
            answer = last_boxed(tail) if OPEN_BOX.search(tail) else tail.strip()
        case Extraction.PYTHON_BLOCK:
            answer = _last_python_block(tail)
    return answer or None


def _last_python_block(text: str) -> str | None:
    block: str | None = None
    lines: list[str] = []
    fence = language = ""
    for line in text.replace("\r\n", "\n").split("\n"):  # other line ends may stand in the code's own texts
        mark = _FENCE.match(line)
        if not fence:
            if mark:
                fence, language, lines = mark[1], mark[2].strip().lower(), []
        elif mark and mark[1].startswith(fence) and not mark[2].strip():
            if language in _PYTHON:
                block = "\n".join(lines)
            fence = ""
        else:
            lines.append(line)
    return None if fence and language in _PYTHON else block
