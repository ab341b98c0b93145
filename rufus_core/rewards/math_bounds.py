r"""What costs too much to compare, told from the text alone: no parser has to meet it.

A cheap bound, not a proof of harmlessness: what passes here still runs in a process with a budget.
"""

from __future__ import annotations

import math
import re

MAX_CHARACTERS = 20_000  # of a whole response; an answer in a box is bounded by MAX_ANSWER
MAX_ANSWER = 2_000
MAX_DEPTH = 30
MAX_DIGITS = 1_000  # of a number that is written out
MAX_POWER_DIGITS = 20_000  # of what a power or a factorial comes to
MAX_FACTORIAL = 5_000
MAX_CELLS = 200

_SPACES = re.compile(r"\\left|\\right|\\[,;:! ]|[\s~]+")
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_EXPONENT_GROUP = re.compile(r"\^\(([+-]?[\d#]+)\)")
_GROUP = re.compile(r"\(([\d#]+)\)|(?<![\^a-zA-Z}\]_])\{([\d#]+)\}(?!\{)")
_POWER = re.compile(r"([\d#]+)\^(?:\{([+-]?[\d#]+)\}|([+-]?[\d#]+)(?![\d#^]))")
_FACTORIAL = re.compile(r"([\d#]+)!")
_LARGE = "#"  # stands for a number of more digits than are worked out
_WORKED_OUT = 60
_ROUNDS = 12


def too_expensive(text: str, limit: int = MAX_ANSWER) -> str:
    """Why comparing the text could cost too much; empty if nothing is seen."""
    if len(text) > limit:
        return f"more than {limit} characters"
    if _depth(text) > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH}"
    if text.count("&") + text.count(r"\\") > MAX_CELLS:
        return f"a matrix of more than {MAX_CELLS} cells"
    return _number_fault(_SPACES.sub("", text).replace("**", "^"))


def _depth(text: str) -> int:
    depth = deepest = 0
    for sign in text:
        if sign in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in "})]":
            depth = max(0, depth - 1)
    return deepest


def _number_fault(text: str) -> str:
    """Powers and factorials of plain numbers are worked out from the inside; one that grows too long ends it."""
    if _LONG_NUMBER.search(text):
        return f"a number of more than {MAX_DIGITS} digits"
    for _ in range(_ROUNDS):
        reduced = _EXPONENT_GROUP.sub(r"^{\1}", text)
        reduced = _GROUP.sub(lambda match: "\u00b7" + (match[1] or match[2]), reduced)
        try:
            reduced = _POWER.sub(_power, _FACTORIAL.sub(_factorial, reduced))
        except _TooLarge:
            return f"a power or factorial of more than {MAX_POWER_DIGITS} digits"
        if reduced == text:
            return ""
        text = reduced
    return "powers of powers"


class _TooLarge(Exception):
    """A number has too many digits."""


def _factorial(match: re.Match[str]) -> str:
    if _LARGE in match[1] or len(match[1]) > 4 or int(match[1]) > MAX_FACTORIAL:
        raise _TooLarge
    return str(math.factorial(int(match[1]))) if int(match[1]) < 40 else _LARGE


def _power(match: re.Match[str]) -> str:
    base, exponent = match[1], (match[2] or match[3]).lstrip("+-")
    if _LARGE not in base and int(base) in (0, 1):
        return base
    if _LARGE in exponent or len(exponent) > 6:
        raise _TooLarge
    digits = int(exponent) * (_WORKED_OUT if _LARGE in base else math.log10(int(base)))
    if digits > MAX_POWER_DIGITS:
        raise _TooLarge
    return str(int(base) ** int(exponent)) if digits < _WORKED_OUT and _LARGE not in base else _LARGE
