"""Printing what differs, shared by the commands."""

from __future__ import annotations

import json
import re

from rufus_core.lineage.diff import FieldChange
from rufus_core.types import Json

_SHA256 = re.compile(r"[0-9a-f]{40,64}")
SHORT = 12  # digits of a digest or a commit
MAX_VALUE = 60  # characters


def change_text(change: FieldChange) -> str:
    """For example `config.settings.optimizer.lr_peak: 0.0003 -> 0.0001`."""
    return f"{printable(change.path)}: {value_text(change.old)} -> {value_text(change.new)}"


def value_text(value: Json) -> str:
    """A value on one line, safe for a terminal; digests are shortened and absent values are a dash."""
    if value is None:
        return "-"
    if isinstance(value, str) and _SHA256.fullmatch(value):
        return value[:SHORT]
    text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."


def printable(text: str) -> str:
    """Text of a record's, safe for a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
