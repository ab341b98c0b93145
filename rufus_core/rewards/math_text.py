r"""What stands in a mathematical answer, as text: wrapper, unit, option letter, words, and one spelling of the rest.

Pure and without a parser. A *whole* is an answer that is nothing but one expression: a box, `$...$` or a bare formula.
Such a text must be read from its first sign to its last; prose is searched for its answer by Math-Verify instead.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from rufus_core.rewards.options import names_another
from rufus_core.rewards.unit_words import NO_UNIT
from rufus_core.rewards.units import parse_unit

_MAX_WRAPPERS = 8
_WRAPPERS = ((r"\[", r"\]"), (r"\(", r"\)"), ("$$", "$$"), ("$", "$"))
_INNER_WRAPPER = re.compile(r"(?<!\\)\$|\\\[(?!\d)|\\\]|\\\(|\\\)|\\boxed|\\fbox")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}(?![a-zA-Z])")
_FUNCTIONS = (
    "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|theta|alpha|beta|gamma|lambda|infty|cup"
)
_FUNCTION_WORD = re.compile(rf"(?<![\\a-zA-Z])({_FUNCTIONS})(?![a-zA-Z])")
_KNOWN_WORD = re.compile(rf"(?:{_FUNCTIONS}|sqrt|inf|infinity|and|percent|pct|percentage|begin|end|pmatrix)")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mbox|mathrm|mathbf|mathit|operatorname)\s*\{([^{}]*)\}")
_OPTION = re.compile(r"(?:\(([A-J])\)[.:]?|([A-J])\)|([A-J])(?:[.:](?=\s|$)|$))\s*(.*)", re.DOTALL)
_GROUPED = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\\[,; ]|~| )\d{3})+(?![\d\\]|[~ ]\d)")
_APART = re.compile(r"\d(?:\\[,;: ]|[ ~])+\d")
_MIXED = re.compile(r"(?<![\d./])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d./])")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d+)(?!\w)")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar)\s*\{(\d+)\}")
_BASE = re.compile(r"(-?[0-9A-Fa-f]+)_\{?(?:\\text\{)?(\d+|two|three|eight|ten|sixteen)\}{0,2}")
_BASES = {"two": 2, "three": 3, "eight": 8, "ten": 10, "sixteen": 16}
_TRAILING_TEXT = re.compile(
    r"(?P<rest>.*[^\s=<>+\-*/,;(\\])(?:\\[,;: ]|~|\s)*"
    r"\\(?:text(?:bf|it|rm|normal)?|mbox|mathrm|operatorname)\s*\{(?P<unit>[^{}]*)\}(?P<power>\^\{?-?\d\}?)?",
    re.DOTALL,
)
_QUANTITY = re.compile(
    r"(?P<rest>[+-]?(?:\d[\d,.]*|\\frac\{[^{}]*\}\{[^{}]*\}|\d+/\d+))(?:\\[,;: ]|~|\s)*"
    r"(?P<unit>[a-zA-Z°Ωµμ][^\d{}=<>,]*?(?:\^?\{?\d\}?)?)"
)
_CURRENCY = re.compile(r"^([+-]?)\s*(?:\\?\$|€|£|¥|₹|\\pounds|\\euro)\s*(?=[\d.])")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_UNSEEN = dict.fromkeys((0x200B, 0x200C, 0x200D, 0x200E, 0x2060, 0xFEFF))  # signs without a width
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_SIGNS = {
    "\u2212": "-",
    "\u2013": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": "/",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "∞": r"\infty ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "±": r"\pm ",
    "∅": r"\emptyset ",
    "π": r"\pi ",
    "°": r"^\circ ",
    "\u2044": "/",
    "ℝ": r"\mathbb{R}",
}
_PLUS_MINUS, _MINUS_PLUS = re.compile(r"\\pm(?![a-zA-Z])"), re.compile(r"\\mp(?![a-zA-Z])")
_HIDDEN = re.compile(r"\\[hv]?phantom(?![a-zA-Z])")
_ROOT = re.compile(r"√\s*(\d+|[a-zA-Z]|\(([^()]*)\))")
_GROUPS_BY_AND = re.compile(
    r"(?:\\quad|\\qquad|\s|\\ )*(?:\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)(?:\\quad|\\qquad|\s|\\ )*"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer in parts. `formula` is empty where there are only words or a letter."""

    formula: str
    letter: str = ""
    words: str = ""
    unit: str = ""
    base: int | None = None
    is_text: bool = False  # set as text, so that its letters are no product


def whole(text: str) -> str | None:
    r"""What a text holds that is nothing but an answer; None for prose and for several formulas."""
    inner, boxed = text.strip(), False
    for _ in range(_MAX_WRAPPERS):
        bare = inner.rstrip(". \n\t") if not inner.endswith(("\\.", "..")) else inner
        box = _box_content(bare)
        if box is not None:
            inner, boxed = box.strip(), True
            continue
        for opening, closing in _WRAPPERS:
            if len(bare) > len(opening) + len(closing) and bare.startswith(opening) and bare.endswith(closing):
                candidate = bare[len(opening) : -len(closing)]
                if opening == "$" and candidate.endswith("\\"):
                    continue
                if not _INNER_WRAPPER.search(candidate) or _box_content(candidate.strip()) is not None:
                    inner, boxed = candidate.strip(), True
                    break
        else:
            break
    if _INNER_WRAPPER.search(_CURRENCY.sub("", inner)):
        return None
    if (
        not boxed
        and not _OPTION.fullmatch(inner)
        and any(not _KNOWN_WORD.fullmatch(word) for word in _WORD.findall(_TEXT.sub(" ", inner)))
    ):
        return None
    return inner


def dissect(inner: str) -> Answer:
    """The parts of a whole answer, its formula in the spelling that the parser understands."""
    text = _TRAILING_SIGNS.sub("", _plain(inner))
    spoken = _TEXT.sub(lambda match: match[1], text)
    letter, rest = _option(spoken)
    if letter and names_another(rest):
        return Answer("")
    if letter:
        inside = dissect(rest) if rest else Answer("")
        return Answer(inside.formula, letter, inside.words, inside.unit, inside.base)
    words = _words(spoken)
    text, unit = _split_unit(text)
    text = _CURRENCY.sub(r"\1", text)
    text, base = _split_base(text)
    formula = _spell(text)
    return Answer(formula, "", words, unit, base, is_text=bool(words) and _TEXT.fullmatch(inner.strip()) is not None)


def digits_apart(formula: str) -> bool:
    """`8 8`: a reader sees two numbers, the parser a product."""
    return _APART.search(formula) is not None


def moduli(formula: str) -> list[str]:
    r"""What remainders are taken by: the parser works `3 \mod 4` out to 3, as it does `3 \mod 5`."""
    return re.findall(r"\\mod\s*(\d+)", formula)


def hides(formula: str) -> bool:
    r"""`\phantom{3}`: a reader sees nothing, the parser a 3."""
    return _HIDDEN.search(formula) is not None


_TRAILING_SIGNS = re.compile(r"(?:(?<!\\)[.,;\s]|\\[,;:! ]|\\q?quad|\\$)+$")


def _box_content(text: str) -> str | None:
    r"""The content of a `\boxed{}` that is the whole text."""
    match = re.match(r"\\(?:boxed|fbox)\s*\{", text)
    if match is None:
        return None
    depth, position = 1, match.end()
    while position < len(text) and depth:
        if text[position] == "\\":
            position += 1
        elif text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
        position += 1
    return text[match.end() : position - 1] if depth == 0 and position == len(text) else None


def _plain(text: str) -> str:
    text = text.translate(_UNSEEN)
    text = _SUPERSCRIPT.sub(lambda match: "^{" + match[0].translate(_SUPERSCRIPTS) + "}", text)
    text = _ROOT.sub(lambda match: rf"\sqrt{{{match[2] or match[1]}}}", text)
    text = re.sub(r"(?<=\d)([½⅓⅔¼¾⅕⅛])", r" \1", text)
    text = unicodedata.normalize("NFKC", text)
    for sign, spelling in _SIGNS.items():
        text = text.replace(sign, spelling)
    text = re.sub(r"\\(?:degree|deg)(?![a-zA-Z])", r"^\\circ", text)
    text = re.sub(r"\\varnothing(?![a-zA-Z])", r"\\emptyset", text)
    return text.strip()


def _option(text: str) -> tuple[str, str]:
    match = _OPTION.fullmatch(text.strip())
    if match is None:
        return "", text
    return match[1] or match[2] or match[3], match[4].strip().lstrip("\\ ")


def _words(text: str) -> str:
    """The text in one spelling, if it is nothing but words."""
    text = text.replace("\\ ", " ").replace("~", " ")
    return " ".join(text.casefold().split()) if re.fullmatch(r"[^\W\d_]{2,}(?:[\s'-]+[^\W\d_]+)*", text) else ""


def _split_unit(text: str) -> tuple[str, str]:
    """A formula without the unit behind it. Text behind a formula is a unit if it says nothing else."""
    match = _TRAILING_TEXT.fullmatch(text)
    if match is None:
        bare = _QUANTITY.fullmatch(text)
        # A letter that touches its number is a variable: 3m is no length.
        if bare is None or (
            len(bare["unit"]) == 1 and text[bare.end("rest")] not in " ~\\" and bare["unit"] not in "°"
        ):
            return text, ""
        match = bare
    unit = match["unit"].strip().rstrip(".")
    words = re.findall(r"[^\W\d_]+", unit)
    known = parse_unit(unit) is not None
    if (
        any(word.casefold() in NO_UNIT for word in words)
        or len(words) > 4
        or (re.search(r"\d\d|\d\s*$", unit) and not known)
    ):
        return text, ""
    if match.re is _QUANTITY and not known and not re.fullmatch(r"[a-z]{3,}(?: [a-z]+)*", unit):
        return text, ""
    if not words and not known:
        return (match["rest"], "") if not unit else (text, "")
    power = match.groupdict().get("power") or ""
    return match["rest"], unit + power


def _split_base(text: str) -> tuple[str, int | None]:
    match = _BASE.fullmatch(text)
    if match is None:
        return text, None
    base = _BASES.get(match[2]) or int(match[2])
    digits = match[1].lstrip("-").lower()
    if not 2 <= base <= 16 or any(int(digit, 16) >= base for digit in digits):
        return text, None
    return match[1], base


def _spell(text: str) -> str:
    text = _GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text)
    text = _REPEATING.sub(_fraction, text)
    text = re.sub(r"\\?sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = _FUNCTION_WORD.sub(r"\\\1 ", text)
    text = re.sub(r"\\(?:langle|rangle)", lambda match: "(" if match[0] == r"\langle" else ")", text)
    text = re.sub(r"\*\*", "^", text)
    text = re.sub(r"\\log\s*\(", r"\\log (", text)
    text = re.sub(r"\\log_(\d)(?!\d)", r"\\log_{\1}", text)
    text = re.sub(r"\\[bp]mod(?![a-zA-Z])\s*(?:\{(\d+)\}|(\d+))", lambda match: rf"\mod {match[1] or match[2]}", text)
    return _write_out_signs(_separate_groups(text)).strip()


def _write_out_signs(text: str) -> str:
    r"""Each element with a `\pm` as its two values."""
    if not _PLUS_MINUS.search(text):
        return text
    parts = []
    for element in _elements(text):
        if _PLUS_MINUS.search(element):
            parts += [_MINUS_PLUS.sub(mp, _PLUS_MINUS.sub(pm, element)) for pm, mp in ("+-", "-+")]
        else:
            parts.append(element)
    return ",".join(parts)


def _elements(text: str) -> list[str]:
    """The text cut at the commas and semicolons that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for position, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign in ",;" and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _separate_groups(text: str) -> str:
    """`p = 5, q = 2 and p = 7, q = 2` are two groups, as if a semicolon stood between."""
    groups = _GROUPS_BY_AND.split(text)
    return ";".join(groups) if len(groups) > 1 and all(re.search(r"=.*,.*=", group) for group in groups) else text


def _fraction(match: re.Match[str]) -> str:
    whole_part, fixed, repeated = match.groups()
    denominator = (10 ** len(repeated) - 1) * 10 ** len(fixed)
    numerator = int((whole_part or "0") + fixed + repeated) - int((whole_part or "0") + fixed)
    return rf"\frac{{{numerator}}}{{{denominator}}}"
