"""Printing, shared by the commands."""

from __future__ import annotations

import json
import os
import sys

from rich.console import Console

from rufus_core.types import Json

NUM_COLUMNS = 100  # where the output is no terminal


def console() -> Console:
    """A console on stdout. Colour goes to terminals only, and not where NO_COLOR is set (rich's own rule)."""
    fixed = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=NUM_COLUMNS if fixed else None)


def print_json(value: Json) -> None:
    """One JSON document on stdout and nothing else.

    Raises:
        ValueError: the value holds NaN or an infinity.
    """
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
