"""A small deterministic mutator of Python programs: wrong solutions out of right ones."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OFF_BY_ONE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


def _constant(node: ast.AST) -> bool:
    if not isinstance(node, ast.Constant):
        return False
    match node.value:
        case bool():
            node.value = not node.value
        case int() | float():
            node.value += 1
        case str():
            node.value += "x"
        case _:
            return False
    return True


def _comparison(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and _replace(node.ops, 0, _COMPARISONS)


def _off_by_one(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and _replace(node.ops, 0, _OFF_BY_ONE)


def _arithmetic(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp | ast.AugAssign) or type(node.op) not in _ARITHMETIC:
        return False
    node.op = _ARITHMETIC[type(node.op)]()
    return True


def _removed(node: ast.AST) -> bool:
    """The last statement of a block, other than a function's, a class's or an import."""
    body = getattr(node, "body", None)
    if not isinstance(body, list) or isinstance(node, ast.Module | ast.ClassDef):
        return False
    if isinstance(body[-1], ast.Pass | ast.Import | ast.ImportFrom | ast.FunctionDef) or _is_text(body[-1]):
        return False
    body[-1] = ast.Pass()
    return True


MUTATIONS: dict[str, Callable[[ast.AST], bool]] = {  # each changes the node in place, and says whether it did
    "constant": _constant,
    "comparison": _comparison,
    "off_by_one": _off_by_one,
    "arithmetic": _arithmetic,
    "removed": _removed,
}


def mutants(code: str, kind: str) -> Iterator[str]:
    """The program with one place changed, for each place that the mutation fits; texts that say nothing are spared."""
    tree = ast.parse(code)
    remarks = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and _is_text(node)}
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in remarks or not MUTATIONS[kind](copy.deepcopy(node)):
            continue
        changed = copy.deepcopy(tree)
        MUTATIONS[kind](next(each for number, each in enumerate(ast.walk(changed)) if number == index))
        yield ast.unparse(changed)


def returning(code: str, value: str) -> str:
    """The program whose functions return `value` wherever they returned one."""
    new = ast.parse(value, mode="eval").body

    class Replace(ast.NodeTransformer):
        def visit_Return(self, node: ast.Return) -> ast.Return:
            return ast.Return(new)

    return ast.unparse(ast.fix_missing_locations(Replace().visit(ast.parse(code))))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _replace(ops: list[ast.cmpop], index: int, by: dict[type[ast.cmpop], type[ast.cmpop]]) -> bool:
    if type(ops[index]) not in by:
        return False
    ops[index] = by[type(ops[index])]()
    return True
