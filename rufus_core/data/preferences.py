"""Preference pairs: two final responses to one prompt, and which of them a person preferred."""

from __future__ import annotations

from rufus_core.types import Frozen, Message


class PreferencePair(Frozen):
    """`chosen` and `rejected` are final responses, without reasoning."""

    problem_id: str  # of the prompt's problem, which decides the split
    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
