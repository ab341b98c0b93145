"""Compares what a program printed with what it must print (CRL-R3)."""

from __future__ import annotations

import math

_QUOTED = 40  # characters of a token that a reason quotes
_NUMBER_CHARS = 400  # a longer token is no float, and compares as text


def difference(actual: str, expected: str, float_tolerance: float | None = None) -> str:
    """Where two outputs differ, in a line of text; empty where they don't.

    Compared line by line and token by token: whitespace around and inside a line doesn't count, nor do empty lines at
    the start and at the end. With a tolerance, tokens that are finite numbers are equal if they differ by it at most,
    absolutely or relatively.
    """
    if actual == expected:
        return ""
    if not actual.strip():
        return "no output" if expected.strip() else ""
    ours, theirs = (text.strip().split("\n") for text in (actual, expected))
    for number, (our_line, their_line) in enumerate(zip(ours, theirs, strict=False), start=1):
        if our_line == their_line:
            continue
        our_tokens, their_tokens = our_line.split(), their_line.split()
        for our, their in zip(our_tokens, their_tokens, strict=False):
            if our != their and not _close(our, their, float_tolerance):
                return f"line {number}: expected {_quoted(their)}, got {_quoted(our)}"
        if len(our_tokens) != len(their_tokens):
            return f"line {number}: expected {_count(their_tokens, 'word')}, got {len(our_tokens)}"
    if len(ours) != len(theirs):
        return f"expected {_count(theirs, 'line')}, got {len(ours)}"
    return ""


def _close(actual: str, expected: str, tolerance: float | None) -> bool:
    if tolerance is None or max(len(actual), len(expected)) > _NUMBER_CHARS:
        return False
    if "_" in actual or not actual.isascii():  # Python reads them as numbers, nobody else does
        return False
    try:
        ours, theirs = float(actual), float(expected)
    except ValueError:
        return False
    return math.isfinite(ours) and math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=tolerance)


def _quoted(token: str) -> str:
    return ascii(token if len(token) <= _QUOTED else f"{token[:_QUOTED]}...")


def _count(things: list[str], noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"
