"""Whether an answer solves an entry of reasoning-gym, for kinds whose own checkers can't be trusted with it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

from rufus_core.types import Json

_TOKEN = re.compile(r"\s*(?:(\d{1,9})|([-+*/()]))")
_NUMBER = re.compile(r"[+-]?\d{1,300}(?:\.\d{1,300})?", re.ASCII)
_FRACTION = re.compile(
    r"\$?\s*(?:\\[dt]?frac\{(-?\d{1,300})\}\{(-?\d{1,300})\}|(-?\d{1,300})\s*/\s*(-?\d{1,300}))\s*\$?", re.ASCII
)
_MAX_TOKENS = 100


def same_text(entry: Mapping[str, Json], answer: str) -> bool:
    return bool(answer == entry["answer"])


def same_stripped(entry: Mapping[str, Json], answer: str) -> bool:
    return bool(answer.strip() == entry["answer"].strip())


def same_number(entry: Mapping[str, Json], answer: str) -> bool:
    """A number and nothing else."""
    text = answer.strip().replace(",", "").lstrip("$").strip()
    return _NUMBER.fullmatch(text) is not None and Decimal(text) == Decimal(entry["answer"])


def same_fraction(entry: Mapping[str, Json], answer: str) -> bool:
    """The simplified fraction itself, in any of the usual notations."""
    given, asked = _FRACTION.fullmatch(answer.strip()), _FRACTION.fullmatch(entry["answer"].strip())
    if given is None or asked is None:
        return False
    return _parts(given) == _parts(asked)


def same_probability(entry: Mapping[str, Json], answer: str) -> bool:
    """A decimal or a fraction within 0.0001 of the probability, as their checker has it."""
    given, asked = (_probability(text) for text in (answer, entry["answer"]))
    return given is not None and asked is not None and abs(given - asked) <= Fraction(1, 10_000)


def valid_board(entry: Mapping[str, Json], answer: str) -> bool:
    return bool(answer in entry["metadata"]["valid_answers"])


def reaches_target(entry: Mapping[str, Json], answer: str) -> bool:
    """Each of the numbers is used once, and the expression's value is the target (24 where none is named)."""
    metadata = entry["metadata"]
    value, used = evaluate(answer)
    return value == metadata.get("target", 24) and sorted(used) == sorted(metadata["numbers"])


def evaluate(text: str) -> tuple[Fraction | None, list[int]]:
    """The value of an expression of whole numbers, `+ - * / ( )`, and its numbers; None if it is none or has none."""
    tokens: list[str] = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or len(tokens) == _MAX_TOKENS:
            return None, []
        tokens.append(match[1] or match[2])
        position = match.end()
    numbers = [int(token) for token in tokens if token.isdigit()]
    parser = _Arithmetic(tokens)
    try:
        value = parser.sum()
    except (ZeroDivisionError, _NoExpression):
        return None, numbers
    return (None if parser.left() else value), numbers


class _NoExpression(Exception):
    """The tokens end, or go on, where they may not."""


class _Arithmetic:
    """Recursive descent over the tokens: sum, product, factor."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens[::-1]

    def left(self) -> bool:
        return bool(self._tokens)

    def sum(self) -> Fraction:
        value = self._product()
        while self._next() in ("+", "-"):
            value = value + self._product() if self._tokens.pop() == "+" else value - self._product()
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while self._next() in ("*", "/"):
            value = value * self._factor() if self._tokens.pop() == "*" else value / self._factor()
        return value

    def _factor(self) -> Fraction:
        if not self._tokens:
            raise _NoExpression
        sign = self._tokens.pop()
        if sign == "-":
            return -self._factor()
        if sign == "(":
            value = self.sum()
            if self._next() != ")":
                raise _NoExpression
            self._tokens.pop()
            return value
        if not sign.isdigit():
            raise _NoExpression
        return Fraction(int(sign))

    def _next(self) -> str:
        return self._tokens[-1] if self._tokens else ""


def _probability(text: str) -> Fraction | None:
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return Fraction(text)
    match = _FRACTION.fullmatch(text)
    numerator, denominator = _parts(match) if match else (0, 0)
    return Fraction(numerator, denominator) if denominator else None


def _parts(match: re.Match[str]) -> tuple[int, int]:
    numerator, denominator = (int(part) for part in match.groups() if part is not None)
    return (-numerator, -denominator) if denominator < 0 else (numerator, denominator)
