"""Test statements of functional problems: what runs inside the sandbox, and what is decided outside (CRL-R3).

`assert f(2) == 5` is cut into the expression `f(2)`, whose value is read inside, and the literal `5`, which never
enters the sandbox: a candidate can't forge what it doesn't know. Any other statement runs inside as a whole, with every
call of a candidate's function reduced to plain values first, and counts only with the nonce of its request as proof of
completion. That is weaker: a candidate that searches the interpreter's memory can find the nonce.
"""

from __future__ import annotations

import ast
import builtins
import math
from dataclasses import dataclass
from typing import Any

_NO_LITERAL = object()


@dataclass(frozen=True, slots=True)
class Check:
    """One test. `is_value`: `source` is an expression whose value must equal `expected`; else a statement."""

    source: str
    is_value: bool
    expected: Any = None

    def passes(self, line: str, nonce: str) -> bool:
        """Whether the sandbox's line for this check proves that it passed."""
        kind, _, text = line.partition(" ")
        if not self.is_value:
            return kind == "p" and text == nonce
        value = _literal(text) if kind == "v" else _NO_LITERAL
        return value is not _NO_LITERAL and bool(value == self.expected)


def parse_check(text: str) -> Check:
    """Read one test. Raises SyntaxError (or ValueError for a null byte) if it is no Python."""
    tree = ast.parse(text.strip())
    if len(tree.body) == 1 and isinstance(statement := tree.body[0], ast.Assert):
        expression, expected = _split(statement.test)
        if expected is not _NO_LITERAL:
            return Check(ast.unparse(expression), True, expected)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {(name.asname or name.name).partition(".")[0] for node in imports for name in node.names}
    reduced = ast.fix_missing_locations(_ReduceCalls(imported).visit(tree))
    return Check(ast.unparse(reduced), False)


def _split(test: ast.expr) -> tuple[ast.expr, Any]:
    """`call == literal`, `literal == call` and `call is literal` as (call, literal)."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is):
        left, right = test.left, test.comparators[0]
        for expression, other in ((left, right), (right, left)):
            expected = _literal(ast.unparse(other))
            if isinstance(expression, ast.Call) and _root(expression) is not None and expected is not _NO_LITERAL:
                return expression, expected
    return test, _NO_LITERAL


def _literal(text: str) -> Any:
    """The value of a literal, or `_NO_LITERAL`. NaN and infinity have none."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _NO_LITERAL
    return _NO_LITERAL if isinstance(value, float) and not math.isfinite(value) else value


def _root(node: ast.expr) -> str | None:
    """The name at the bottom of `f(1)`, `Solution().f(1)` or `f(1)[0].g()`, unless it is a built-in's."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) and not hasattr(builtins, node.id) else None


class _ReduceCalls(ast.NodeTransformer):
    """Wrap every outermost call whose root may be a candidate's name, so that no overridden method takes part."""

    def __init__(self, imported: set[str]) -> None:
        self._not_candidates = {None, *imported}

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if _root(node) in self._not_candidates:
            self.generic_visit(node)
            return node
        return ast.Call(func=ast.Name(id="__plain", ctx=ast.Load()), args=[node], keywords=[])
