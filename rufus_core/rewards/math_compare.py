"""Whether two mathematical answers are equal: Math-Verify's judgement, and where ours is stricter.

It parses and simplifies untrusted text, so it runs only in a worker process that can be killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from antlr4 import PredictionMode  # type: ignore[import-untyped]
from latex2sympy2_extended.latex2sympy2 import NormalizationConfig, _Latex2Sympy, normalize_latex
from math_verify import StringExtractionConfig, parse, verify
from math_verify.grader import is_assignment_relation, is_equation, is_relation, should_treat_as_complex
from sympy import (  # type: ignore[import-untyped]
    Basic,
    Expr,
    FiniteSet,
    I,
    Interval,
    MatrixBase,
    Mul,
    Rational,
    Symbol,
    Tuple,
    UnevaluatedExpr,
    nan,
    oo,
    zoo,
)
from sympy.core.function import AppliedUndef  # type: ignore[import-untyped]

from rufus_core.rewards.math_text import Answer, digits_apart, dissect, hides, moduli, whole
from rufus_core.rewards.units import parse_unit

_PARSED = 2048  # formulas that are remembered: a reference stands against many answers, and they repeat
_GAP = 1e-5  # Math-Verify takes what agrees to six decimals for equal
OPTION_LETTERS = tuple("ABCDEFGHIJ")
_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_ONE_PERCENT = UnevaluatedExpr(Rational(1, 100))  # how Math-Verify writes a percent sign


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text was understood as. Nothing at all if `value` is None and there is neither letter nor words."""

    answer: Answer
    value: object = None

    @property
    def readable(self) -> bool:
        return self.value is not None or bool(self.answer.letter or self.answer.words)


def read(text: str) -> Reading:
    """Read a whole answer from its first sign to its last, or find the answer in prose."""
    inner = whole(text)
    if inner is None:
        return _search(text)
    answer = dissect(inner)
    value = None if digits_apart(answer.formula) or hides(answer.formula) else _parse(answer.formula)
    return Reading(answer, value)


def equal(gold: Reading, given: Reading) -> bool:
    """Whether the given answer says what the gold one says. The two are not interchangeable."""
    if gold.answer.letter:
        return gold.answer.letter == given.answer.letter
    if gold.answer.words and given.answer.words:
        if gold.answer.words == given.answer.words:
            return True
        if gold.answer.is_text or given.answer.is_text:
            return False
    if gold.value is None or given.value is None or _units_differ(gold.answer.unit, given.answer.unit):
        return False
    by, other_by = moduli(gold.answer.formula), moduli(given.answer.formula)
    if _primes(gold) != _primes(given) or (by and other_by and by != other_by):
        return False
    left, right = _with_base(gold, given)
    if _braced(gold) != _braced(given) and _is_ordered(left if _braced(given) else right):
        return False
    settled = right if is_relation(left) else _settle(right)
    return settled is not None and _same(left, settled)


def _same(gold: object, given: object) -> bool:
    if not (isinstance(gold, Expr) and isinstance(given, Expr)):
        return bool(verify([gold], [given], timeout_seconds=None))
    left, right = _in_one_plane(gold, given)
    lone = isinstance(left, Symbol), isinstance(right, Symbol)
    if not any(lone) and _differ_somewhere(left, right):
        return False
    if verify([left], [right], timeout_seconds=None):
        return True
    # Math-Verify compares a lone symbol by its spelling: x isn't x + 0. Twice a symbol is an expression.
    return lone[0] != lone[1] and bool(verify([2 * left], [2 * right], timeout_seconds=None))


def _in_one_plane(left: Expr, right: Expr) -> tuple[Expr, Expr]:
    """A lone name i is the imaginary unit beside what has no name: 2i is the root of -4."""
    for named, plain in ((left, right), (right, left)):
        if not plain.free_symbols and {str(symbol) for symbol in named.free_symbols} == {"i"}:
            unit = dict.fromkeys(named.free_symbols, I)
            return left.subs(unit), right.subs(unit)
    return left, right


def _differ_somewhere(left: Expr, right: Expr) -> bool:
    """Whether two expressions have different values at one point: then no simplification can make them equal.

    It spares most wrong answers the simplification, which takes ten times longer.
    """
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    point = {symbol: Rational(37 + 12 * index, 29) for index, symbol in enumerate(symbols)}
    try:
        gap = (left - right).evalf(subs=point)
        return bool(gap.is_number and abs(gap) > _GAP)
    except Exception:  # noqa: BLE001 - sympy raises everything there is; nothing is known then
        return False


@lru_cache(maxsize=_PARSED)
def _parse(formula: str) -> object:
    """The expression that the whole formula is; None if it is none, or has no value."""
    normalized = normalize_latex(formula, _NORMALIZATION)
    for converter in (_QuickParser, _Latex2Sympy):
        try:
            value = converter(is_real=not should_treat_as_complex(normalized)).parse(normalized)
        except Exception:  # noqa: BLE001, S112 - the parser raises everything there is; then the text has no value
            continue
        return _defined(value)
    return None


class _QuickParser(_Latex2Sympy):  # type: ignore[misc]
    """Math-Verify's parser, without looking at more context than it must.

    In this mode ANTLR finds the same tree or none (its documentation of `PredictionMode.SLL`), four times faster.
    """

    def create_parser(self, latex_str: str) -> object:
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = PredictionMode.SLL
        return parser


def _search(text: str) -> Reading:
    """What Math-Verify finds in prose, or an option letter where it finds nothing."""
    found = parse(text, parsing_timeout=None)
    if found and isinstance(found[0], Basic | MatrixBase):
        return Reading(Answer(""), _defined(found[0]))
    letters = parse(text, [StringExtractionConfig(strings=OPTION_LETTERS, lowercase=False)], parsing_timeout=None)
    return Reading(Answer("", letter=str(letters[0])) if letters else Answer(""))


def _defined(value: object) -> object:
    """The value with its percentages worked out, so that 28% is 0.28 and not 28; None for 1/0 and its like."""
    if not isinstance(value, Basic):
        return value
    if value.has(nan, zoo):
        return None
    return (
        value.replace(_is_percentage, lambda part: part.args[0] * Rational(1, 100))
        if value.has(_ONE_PERCENT)
        else value
    )


def _is_percentage(value: object) -> bool:
    return isinstance(value, Mul) and len(value.args) == 2 and value.args[1] == _ONE_PERCENT


def _settle(value: object) -> object:
    """The value that an equation states, in sets for each element; None if its sides contradict each other.

    A name on the left is no claim (`x = 4`, `f(2) = 4`). What else stands in the chain must equal its end
    (`2 + 2 = 4`).
    """
    if isinstance(value, FiniteSet):
        elements = [_settle(element) for element in value.args]
        return None if any(element is None for element in elements) else value
    if not is_equation(value):
        return value
    chain = getattr(value, "_unsorted_args", [value])  # only a chain has them: in the order of the text
    sides = [chain[0].lhs, *(part.rhs for part in chain)]
    named = is_assignment_relation(chain[0]) or isinstance(chain[0].lhs, AppliedUndef)
    claims = sides[1:-1] if named else sides[:-1]
    return value if all(verify([sides[-1]], [side], timeout_seconds=None) for side in claims) else None


def _units_differ(left: str, right: str) -> bool:
    known, other = parse_unit(left), parse_unit(right)
    return known is not None and other is not None and known != other


def _with_base(gold: Reading, given: Reading) -> tuple[object, object]:
    """A number that names its base has its value; one that names none is in the base of the reference."""
    base, other = gold.answer.base, given.answer.base
    if base == other or (base and not other):
        return gold.value, given.value
    return tuple(_in_base(reading) for reading in (gold, given))  # type: ignore[return-value]


def _in_base(reading: Reading) -> object:
    base = reading.answer.base
    return Rational(int(reading.answer.formula, base)) if base else reading.value


def _primes(reading: Reading) -> int:
    """How many there are; the parser drops them."""
    formula = reading.answer.formula
    return formula.count("'") + formula.count(r"\prime")


def _braced(reading: Reading) -> bool:
    return reading.answer.formula.replace(r"\left", "").lstrip().startswith((r"\{", r"\lbrace"))


def _is_ordered(value: object) -> bool:
    return isinstance(value, Tuple) or (
        isinstance(value, Interval) and bool(value.is_open) and oo not in value.args and -oo not in value.args
    )
