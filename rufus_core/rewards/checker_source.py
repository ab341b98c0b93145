"""What the source of a generated checker may say. Pure: nothing of it runs here.

No boundary, for that is the sandbox: what reads a clock, draws at random or looks for a way out is refused early.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
from dataclasses import dataclass
from types import ModuleType

MAX_SOURCE_CHARACTERS = 10_000
# What says the same in every run, and can't reach beyond the arguments.
MODULES = frozenset(
    {
        *("__future__", "ast", "bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools"),
        *("heapq", "itertools", "json", "math", "operator", "re", "statistics", "string", "textwrap", "typing"),
        "unicodedata",
    }
)
_NAMES = frozenset(
    {
        *("breakpoint", "compile", "delattr", "eval", "exec", "getattr", "globals", "hash", "id", "input", "locals"),
        *("memoryview", "open", "print", "setattr", "vars"),
    }
)
_CLOCKS = frozenset({"now", "today", "utcnow"})  # attributes of `datetime`
_FRAMES = frozenset({"ag_frame", "cr_frame", "gi_frame", "tb_frame"})  # whence every caller's names are reached
_STATEMENTS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr)


class CheckerFault(enum.StrEnum):
    """Why a generated checker is refused: the first of these that holds."""

    NO_FUNCTION = "no_function"  # no Python, too long, or without the function of one text
    IMPORTS = "imports"  # it imports, names or does what a check of a text doesn't need, or imports and doesn't use it
    NO_EXAMPLES = "no_examples"  # nothing to try it on
    RAISES = "raises"  # an exception, a time-out, or no boolean, on one of its own examples
    POSITIVE = "positive"  # it says False of a positive example
    NEGATIVE = "negative"  # it says True of a negative example
    NOT_DETERMINISTIC = "not_deterministic"  # it doesn't say the same in every run


@dataclass(frozen=True, slots=True)
class CheckerVerdict:
    """`fault` is None iff the checker is admitted; `detail` says more for whoever reads a report."""

    fault: CheckerFault | None
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.fault or 'admitted'} {self.detail}".rstrip()


@functools.lru_cache(maxsize=1024)  # all rollouts of a problem meet the same checker
def check_source(source: str, function: str) -> CheckerVerdict:
    """Whether a source may be tried at all: NO_FUNCTION, IMPORTS or no fault."""
    if len(source) > MAX_SOURCE_CHARACTERS:
        return CheckerVerdict(CheckerFault.NO_FUNCTION, f"over {MAX_SOURCE_CHARACTERS} characters")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return CheckerVerdict(CheckerFault.NO_FUNCTION, f"no Python: {ascii(str(error))[1:-1]}")
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if function not in functions or not _takes_one(functions[function].args):
        return CheckerVerdict(CheckerFault.NO_FUNCTION, f"no function {function!a} of one text")
    for node in tree.body:
        if not isinstance(node, _STATEMENTS):
            return CheckerVerdict(CheckerFault.IMPORTS, f"{type(node).__name__} at line {node.lineno}")
    refused = _refused_names(tree)
    return CheckerVerdict(CheckerFault.IMPORTS if refused else None, ", ".join(sorted(refused)))


def _takes_one(arguments: ast.arguments) -> bool:
    needed = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return needed == 1 and all(default is not None for default in arguments.kw_defaults)


def _refused_names(tree: ast.Module) -> set[str]:
    """Modules that aren't allowed or that nothing uses, built-ins, clocks, frames, names that begin with `__`."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    refused = (used & _NAMES) | (attributes & (_CLOCKS | _FRAMES))
    refused |= {name for name in used | attributes if name[:2] == "__"}
    reached = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        bound = {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            modules = {"." if node.level else node.module or "."}
            refused |= set(bound.values()) & (_NAMES | _CLOCKS)
            refused |= {name for module in modules for name in bound.values() if _leads_out(module, name)}
        else:
            modules = set(bound.values())
            refused |= {
                f"{bound[name]}.{attribute}"
                for name, attribute in reached
                if name in bound and _leads_out(bound[name], attribute)
            }
        refused |= {module for module in modules if not _allowed(module)}
        if modules != {"__future__"}:
            refused |= {name for as_name, name in bound.items() if as_name not in used}
    return refused


def _allowed(module: str) -> bool:
    return module.partition(".")[0] in MODULES


@functools.cache
def _leads_out(module: str, name: str) -> bool:
    """Whether an allowed module has under this name another one that is not allowed, as `statistics` has `random`."""
    if module not in MODULES:  # refused as a whole, or a part of one, which is never imported by name
        return False
    found = getattr(importlib.import_module(module), name, None)
    return isinstance(found, ModuleType) and not _allowed(found.__name__)
