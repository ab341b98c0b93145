r"""Fuzzy string match for short science answers (RRL-R1): pure and deterministic.

Declared policy. Case, punctuation, articles, `$` and `\text{}` are left out. Numbers with their signs, bounds and
percent signs, charges, option letters and negations must be exactly equal. The other words must agree to 0.9 or more,
in order. Words may be left out or added; where words are exchanged the texts agree to 0.85 at most. A number with a
known unit, and nothing else, is a quantity: equal iff it is the same amount of the same (1 km is 1000 m, and not 1000).
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from difflib import SequenceMatcher

from rufus_core.rewards.options import names_another
from rufus_core.rewards.units import KNOWN, Unit, parse_unit

THRESHOLD = 0.9
EXCHANGED = 0.85  # the most that two texts agree of which neither is the other with words put in
_LATEX = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}|\\[,;!]|\$")
_WHOLE_NUMBER = r"(?<![\w.])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:\s?%)?(?!\w)"
_BOUND = r"(?:[<>]=?|[\u2264\u2265\u00b1])(?=\s*[+-]?\.?\d)"  # `< 5` isn't 5
_CHARGE = r"(?<=\w)[+-](?!\w)"  # of Fe^{2+}
_TOKEN = re.compile(rf"{_WHOLE_NUMBER}|{_BOUND}|{_CHARGE}|\w+")
_SPELLINGS = {"<=": "\u2264", ">=": "\u2265"}
_EXACT_SIGNS = {"<", ">", "\u2264", "\u2265", "\u00b1", "+", "-"}
_SIGN_APART = re.compile(r"(^|[=(,:]\s*)([+-])\s+(?=\.?\d)")
_ARROW = re.compile(r"<?[-=]+>")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_OPTION = re.compile(r"\s*\(?([A-J])(?:\s*[).:]+\s*|\s*$)(.*)", re.DOTALL)
_QUANTITY = re.compile(
    r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d{1,300})?(?:\.\d{1,300})?)"
    r"(?:\s*(?:x|\*|\\times|\\cdot)\s*10\s*\^\s*\{?([+-]?\d{1,3})\}?|[eE]([+-]?\d{1,3})(?!\w))?\s*(.*)"
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_CONTRACTION = re.compile(r"(?:(?<=\bca)n['’]t|n['’]t)\b", re.IGNORECASE)
_ARTICLES = {"a", "an", "the"}
_NEGATIONS = {"not", "no", "never", "without", "non", "neither", "nor", "cannot"}


def fuzzy_match(reference: str, answer: str, threshold: float = THRESHOLD) -> bool:
    """Whether the answer says what the reference says; `threshold` is for its words, in [0, 1]."""
    reference, answer = _plain(reference), _plain(answer)
    letter, text = _option(reference)
    other_letter, other_text = _option(answer)
    if other_letter and names_another(other_text):
        return False
    if letter and other_letter:
        return letter == other_letter and (not text or not other_text or _same_text(text, other_text, threshold))
    if letter and not text:
        return False
    amount, other_amount = _quantity(text), _quantity(other_text)
    if amount and other_amount:
        return amount == other_amount
    return _same_text(text, other_text, threshold)


def token_similarity(left: list[str], right: list[str]) -> float:
    """Twice the tokens in common, in order, by the number of all tokens: in [0, 1], and 1 only if equal."""
    return SequenceMatcher(None, left, right, autojunk=False).ratio()


def _same_text(reference: str, answer: str, threshold: float) -> bool:
    left, right = _tokens(reference), _tokens(answer)
    if not left or not right:
        return False
    if _exact_part(left) != _exact_part(right):
        return False
    shorter, longer = sorted((left, right), key=len)
    best = 1.0 if _is_part(shorter, longer) else EXCHANGED
    return min(best, token_similarity(left, right)) >= threshold


def _is_part(shorter: list[str], longer: list[str]) -> bool:
    """Whether the longer text is the shorter one with words put in."""
    rest = iter(longer)
    return all(word in rest for word in shorter)


def _quantity(text: str) -> tuple[Decimal, Unit] | None:
    """The amount in base units and what it is of, for a number with a unit and nothing else."""
    match = _QUANTITY.fullmatch(text.rstrip(". "))
    unit = parse_unit(match[4]) if match else None
    if match is None or unit is None or not any(map(str.isdigit, match[1])):
        return None
    factor, powers = unit
    number = Decimal(match[1].replace(",", "")).scaleb(int(match[2] or match[3] or 0))
    return (number * factor).normalize(), (Decimal(1), powers)


def _exact_part(tokens: list[str]) -> list[str]:
    exact = _NEGATIONS | _EXACT_SIGNS
    return [token for token in tokens if token in exact or token[-1] == "%" or _NUMBER.fullmatch(token)]


def _tokens(text: str) -> list[str]:
    words: list[str] = []
    for token in _TOKEN.findall(text):
        # A unit's case is part of it: mW and MW. It is known by the number before it.
        unit = token in KNOWN and bool(words) and _NUMBER.fullmatch(words[-1])
        words.append(token if unit else _canonical(token.casefold()))
    return [word for word in words if word not in _ARTICLES] or words


def _canonical(token: str) -> str:
    """A number in one spelling: 1,000.0 and 1000 are the same, 28 and 28% are not."""
    sign = "%" if token.endswith("%") else ""
    number = token.rstrip("% ").replace(",", "")
    if not _NUMBER.fullmatch(number):
        return _SPELLINGS.get(token, token)
    whole, _, decimals = number.partition(".")
    value = Decimal(f"{whole}.{decimals.rstrip('0')}") if decimals.rstrip("0") else Decimal(whole)
    return f"{value:f}{sign}" if value else f"0{sign}"


def _option(text: str) -> tuple[str, str]:
    """The option letter and the text behind it: `(B) iron`, `B. iron`, `B`; ("", text) if there is no letter."""
    match = _OPTION.fullmatch(text)
    return (match[1], match[2].strip()) if match else ("", text)


def _plain(text: str) -> str:
    text = _SUPERSCRIPT.sub(lambda match: "^" + match[0].translate(_SUPERSCRIPTS), text).replace("×", "x")
    text = unicodedata.normalize("NFKC", text).replace("\u2212", "-").replace("\\%", "%")
    text = _SIGN_APART.sub(r"\1\2", _ARROW.sub(" ", _CONTRACTION.sub(" not", text)).strip())
    return _LATEX.sub(lambda match: match[1] or " " if match[1] else " ", text).strip()
