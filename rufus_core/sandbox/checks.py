"""Test statements of functional problems: what runs inside the sandbox, and what is decided outside (CRL-R3).

`assert f(2) == 5` is cut into the expression `f(2)`, whose value is read inside, and the literal `5`, which never
enters the sandbox. Any other statement is run by the referee (`referee.py`), in a process that never executed the
candidate's code.
"""

from __future__ import annotations

import ast
import builtins
import functools
import math
import sys
from dataclasses import dataclass
from typing import Any, Literal

from rufus_core.ports.programs import Proof
from rufus_core.sandbox.values import count_members, decode

_NO_LITERAL = object()


@dataclass(frozen=True, slots=True)
class Setup:
    """What setup code brings along: `imports`, which the referee runs itself, the names that they bind, and helpers.

    Helpers run in the program's process, for they share its objects.
    """

    imports: str
    imported: frozenset[str]
    helpers: frozenset[str]


NO_SETUP = Setup("", frozenset(), frozenset())


@dataclass(frozen=True, slots=True)
class Check:
    """One test.

    `kind` "value": `source` is an expression whose value must equal `expected` (with `exact`: and be of its type); else
    a statement. `names` are those that it may take from the program; `classes` are definitions of its own, which live
    in the program's process because its calls have their objects as arguments; `helped` by such, or by the setup's.
    """

    kind: Literal["value", "statement"]
    source: str
    names: tuple[str, ...] = ()
    classes: str = ""
    expected: Any = None
    exact: bool = False
    helped: bool = False

    @property
    def proof(self) -> Proof:
        if self.helped:
            return "helpers"
        return "compared" if self.kind == "value" else "referee"

    def passes(self, line: str) -> bool:
        """Whether the referee's line for this check says that it passed."""
        kind, _, told = line.partition(" ")
        if self.kind == "statement":
            return kind == "p"
        if kind != "v":
            return False
        try:
            value = decode(bytes.fromhex(told), max_members=count_members(self.expected))
            return bool(value == self.expected) and (not self.exact or type(value) is type(self.expected))
        except (ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
            return False


@functools.lru_cache(maxsize=1024)
def parse_setup(text: str) -> Setup:
    """Read setup code. Raises SyntaxError (or ValueError for a null byte) if it is no Python."""
    body = ast.parse(text).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}
    definitions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    rest = ast.Module([node for node in body if node not in definitions], [])
    defined = {node.name for node in definitions}
    defined |= {node.id for node in ast.walk(rest) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return Setup("\n".join(map(ast.unparse, imports)), frozenset(imported), frozenset(defined))


@functools.lru_cache(maxsize=4096)  # all rollouts of a problem meet the same tests
def parse_check(text: str, setup: Setup = NO_SETUP) -> Check:
    """Read one test. Raises SyntaxError (or ValueError for a null byte) if it is no Python."""
    tree = ast.parse(text.strip())
    nodes = [*ast.walk(tree)]
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    attributes = [node.value for node in nodes if isinstance(node, ast.Attribute)]
    modules = {node.id for node in attributes if isinstance(node, ast.Name)} & sys.stdlib_module_names
    trusted = setup.imported | modules
    helped = not read.isdisjoint(setup.helpers)
    first = tree.body[0] if len(tree.body) == 1 else None
    if isinstance(first, ast.Assert) and (cut := _cut(first.test, trusted)):
        expression, operator, expected = cut
        exact = isinstance(operator, ast.Is)
        return Check("value", ast.unparse(expression), expected=expected, exact=exact, helped=helped)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    imports = [ast.Import([ast.alias(name)]) for name in sorted(modules)]
    body = ast.Module([*imports, *(node for node in tree.body if node not in classes)], [])
    read = (read - _stored(body)) | {node.name for node in classes}
    # a test of nothing but built-in names asks for a program that defines one of them
    names = {name for name in read if not hasattr(builtins, name)} or read
    return Check(
        "statement",
        ast.unparse(body),
        tuple(sorted(names - trusted)),
        "\n\n".join(map(ast.unparse, classes)),
        helped=helped or bool(classes),
    )


def _stored(tree: ast.AST) -> set[str]:
    """The names that code itself gives values to, outside of its functions."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return set()
    own = {tree.id} if isinstance(tree, ast.Name) and isinstance(tree.ctx, ast.Store) else set()
    return own.union(*map(_stored, ast.iter_child_nodes(tree)))


def _cut(test: ast.expr, trusted: frozenset[str]) -> tuple[ast.expr, ast.cmpop, Any] | None:
    """`call == literal`, `literal == call` and `call is literal` as (call, operator, literal)."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is):
        left, right = test.left, test.comparators[0]
        for expression, other in ((left, right), (right, left)):
            expected = _literal(ast.unparse(other))
            if isinstance(expression, ast.Call) and _is_candidates(expression, trusted) and expected is not _NO_LITERAL:
                return expression, test.ops[0], expected
    return None


def _literal(text: str) -> Any:
    """The value of a literal, or `_NO_LITERAL`. NaN and infinity have none."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _NO_LITERAL
    return _NO_LITERAL if isinstance(value, float) and not math.isfinite(value) else value


def _is_candidates(node: ast.expr, trusted: frozenset[str]) -> bool:
    """Whether the name at the bottom of `f(1)`, `Solution().f(1)` or `f(1)[0].g()` is no built-in's or module's."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and not hasattr(builtins, node.id) and node.id not in trusted
