"""Answers by the letter of an option: whether one letter was chosen, or several were named."""

from __future__ import annotations

import re

_ANOTHER = re.compile(
    r"\(?[A-J]\)"  # a marked letter
    r"|^\s*(?:\\text\s*\{)?\s*(?:or|and|nor|,|;|/|&|\|)"  # it goes on where the first one ended
    r"|(?:[,;/]|\b(?:or|and|but|not))\s*\(?[A-J]\)?\W*$"  # and ends with one
)


def names_another(rest: str) -> bool:
    """Whether what follows an option's letter, `(A) or (B)`, names another one: then none was chosen."""
    return _ANOTHER.search(rest) is not None
