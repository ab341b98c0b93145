"""An assistant's turn as it grows: which of its text is reasoning, which is content, where its tool calls begin."""

from __future__ import annotations

from typing import Literal

from rufus_core.rollout.server.completion import held_back

Part = Literal["reasoning", "content", "calls"]
_OPENED: dict[str, Part] = {"<think>": "reasoning", "</think>": "content", "<tool_call>": "calls"}


class TurnStream:
    """Splits the text of a turn, which comes in pieces.

    Put together, the pieces of each part are what `ChatFormat.parse` reads in the whole turn, unless the turn thinks a
    second time or speaks before it thinks. Tool calls are left to that: they mean nothing before they are complete.

    Args:
        thinking: the prompt has opened the think block already.
        tools: whether there are tools to call.
    """

    def __init__(self, thinking: bool, tools: bool) -> None:
        self._part: Part = "reasoning" if thinking else "content"
        calls = ["<tool_call>"] if tools else []
        self._marks: dict[Part, list[str]] = {"reasoning": ["</think>"], "content": ["<think>", *calls], "calls": []}
        self._rest = ""
        self._begun = False  # whether this part has shown anything yet

    def push(self, text: str) -> list[tuple[Part, str]]:
        """What can be told for sure after these characters: non-empty pieces in order."""
        self._rest += text
        pieces: list[tuple[Part, str]] = []
        while found := self._next_mark():
            at, mark = found
            self._show(self._rest[:at].rstrip(), pieces)
            self._rest = self._rest[at + len(mark) :]
            self._part = _OPENED[mark]
            self._begun = False
        # White space at the end of a part isn't part of it, and it may be the end.
        sure = self._rest[: len(self._rest) - held_back(self._rest, self._marks[self._part])].rstrip()
        self._show(sure, pieces)
        self._rest = self._rest[len(sure) :]
        return pieces

    def end(self) -> list[tuple[Part, str]]:
        """What was held back."""
        pieces: list[tuple[Part, str]] = []
        self._show(self._rest.rstrip(), pieces)
        self._rest = ""
        return pieces

    def _next_mark(self) -> tuple[int, str] | None:
        found = ((self._rest.find(mark), mark) for mark in self._marks[self._part])
        return min((each for each in found if each[0] >= 0), default=None)

    def _show(self, text: str, pieces: list[tuple[Part, str]]) -> None:
        text = text if self._begun else text.lstrip()
        if text:
            self._begun = True
            if self._part != "calls":
                pieces.append((self._part, text))
