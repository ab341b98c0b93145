"""The process behind `MathVerifier`: compares two expressions per request, until its input ends or it is killed.

Run as a script, never imported by the verifier. Requests are JSON lines `{"gold", "text"}`. Each is answered by a line
once the gold answer is read (`true` or `false`) and, if it could be, by a second line with the verdict.
Math-Verify's own alarms are off, because they do nothing outside a main thread: the parent holds the deadline.
"""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import sys

from math_verify import StringExtractionConfig, parse, verify
from sympy import Basic, Mul, Rational, UnevaluatedExpr  # type: ignore[import-untyped]

MEMORY_BYTES = 4 * 1024**3
OPTION_LETTERS = tuple("ABCDEFGHIJ")
ONE_PERCENT = UnevaluatedExpr(Rational(1, 100))  # how Math-Verify writes a percent sign


def read(text: str) -> list[object]:
    """What Math-Verify reads in the text, or an option letter where it reads nothing."""
    found: list[object] = parse(text, parsing_timeout=None)
    if not found:
        found = parse(text, [StringExtractionConfig(strings=OPTION_LETTERS)], parsing_timeout=None)
    # The source text comes along as a fallback. It is dropped where there is an expression: "28" is also that of 28%.
    return [found[0]] if found and isinstance(found[0], Basic) else found


def is_percentage(value: object) -> bool:
    return isinstance(value, Mul) and len(value.args) == 2 and value.args[1] == ONE_PERCENT


def equal(gold: list[object], answer: list[object]) -> bool:
    """Math-Verify's verdict, except that it takes 28 and 28% for the same: 28% equals 0.28 here."""
    if gold and answer and is_percentage(gold[0]) != is_percentage(answer[0]):
        gold, answer = [_value(gold[0])], [_value(answer[0])]
    return bool(verify(gold, answer, timeout_seconds=None))


def _value(expression: object) -> object:
    return expression.doit() if is_percentage(expression) and isinstance(expression, Basic) else expression


def main() -> None:
    logging.disable(logging.WARNING)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    replies = sys.stdout
    print("ready", file=replies, flush=True)
    with contextlib.redirect_stdout(sys.stderr):  # what parsers print is no reply
        for line in sys.stdin:
            request = json.loads(line)
            gold = read(request["gold"])
            print(json.dumps(bool(gold)), file=replies, flush=True)
            if gold:
                print(json.dumps(equal(gold, read(request["text"]))), file=replies, flush=True)


if __name__ == "__main__":
    main()
