"""Generated checkers (IF-D2): a teacher writes one Python function for a constraint; a sandbox runs it, never we.

A checker is admitted only if it says True of its own positive example and False of its negative one, in every run. It
becomes the rubric `{"kind": "generated", "source": ..., "function": ...}`; what it returns is compared outside.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Mapping
from dataclasses import dataclass

from rufus_core.errors import DataError
from rufus_core.ports import CodeSandbox
from rufus_core.types import Json

GENERATED = "generated"
TIMEOUT_SECONDS = 2.0
# A constraint on a text needs no more. What isn't here is time, chance, files, processes, the network or a back door.
IMPORTS = frozenset({"collections", "itertools", "json", "math", "re", "string", "typing", "unicodedata"})
FORBIDDEN_NAMES = frozenset(
    {"__import__", "breakpoint", "compile", "eval", "exec", "globals", "hash", "id", "input", "locals", "open", "vars"}
)
MOST_SOURCE_CHARACTERS = 10_000
_RUNS = 3  # of each example, in processes of their own
_TRUE, _FALSE = "True", "False"


class CheckerFault(enum.StrEnum):
    """Why a generated checker is refused: the first of these that holds."""

    NO_FUNCTION = "no_function"  # no Python, too long, or without the function of one text
    IMPORTS = "imports"  # it imports, names or does what a check of a text doesn't need, or imports and doesn't use it
    RAISES = "raises"  # an exception, a time-out, or no boolean, on one of its own examples
    POSITIVE = "positive"  # it says False of its positive example
    NEGATIVE = "negative"  # it says True of its negative example
    NOT_DETERMINISTIC = "not_deterministic"  # it doesn't say the same in every run


@dataclass(frozen=True, slots=True)
class GeneratedChecker:
    """What a teacher gives for one constraint: a function of a text, and a text of either kind to try it on."""

    source: str
    function: str
    positive: str
    negative: str

    @property
    def rubric(self) -> dict[str, Json]:
        return {"kind": GENERATED, "source": self.source, "function": self.function}


@dataclass(frozen=True, slots=True)
class CheckerVerdict:
    """`fault` is None iff the checker is admitted; `detail` says more for whoever reads a report."""

    fault: CheckerFault | None
    detail: str = ""


def check_generated(
    checker: GeneratedChecker, pool: CodeSandbox, timeout_seconds: float = TIMEOUT_SECONDS
) -> CheckerVerdict:
    """Whether a checker may become a rubric. Raises InfrastructureError if no sandbox can be had."""
    if verdict := _static_fault(checker.source, checker.function):
        return verdict
    if _is_right(checker, pool, timeout_seconds):
        return CheckerVerdict(None)
    said = {
        text: {_returned(checker, text, pool, timeout_seconds) for _ in range(_RUNS)}
        for text in (checker.positive, checker.negative)
    }
    everything = set[str]().union(*said.values())
    if odd := everything - {_TRUE, _FALSE}:
        return CheckerVerdict(CheckerFault.RAISES, ", ".join(sorted(odd)))
    if said[checker.positive] == {_FALSE}:
        return CheckerVerdict(CheckerFault.POSITIVE)
    if said[checker.negative] == {_TRUE}:
        return CheckerVerdict(CheckerFault.NEGATIVE)
    return CheckerVerdict(CheckerFault.NOT_DETERMINISTIC, "right at times")


def holds_generated(
    rubric: Mapping[str, Json], text: str, pool: CodeSandbox, timeout_seconds: float = TIMEOUT_SECONDS
) -> bool:
    """Whether the rubric's function returns True; one that raises or takes too long says that it doesn't hold.

    Raises:
        DataError: the rubric isn't one that `check_generated` admits by its source.
        InfrastructureError: no sandbox can be had.
    """
    try:
        source, function = str(rubric["source"]), str(rubric["function"])
    except KeyError as error:
        raise DataError(f"the rubric {GENERATED!r} lacks {error}") from error
    if verdict := _static_fault(source, function):
        raise DataError(f"the generated checker {function!r} is refused: {verdict.fault} {verdict.detail}".rstrip())
    return pool.run_checks(source, [_says(function, text, _TRUE)], timeout_seconds).passed


def _is_right(checker: GeneratedChecker, pool: CodeSandbox, timeout_seconds: float) -> bool:
    """Right of both examples in every run, and in either order: a function may keep something between its calls."""
    yes = _says(checker.function, checker.positive, _TRUE)
    no = _says(checker.function, checker.negative, _FALSE)
    orders = ([yes, no, yes, no], [no, yes]) * _RUNS
    return all(pool.run_checks(checker.source, order, timeout_seconds).passed for order in orders)


def _returned(checker: GeneratedChecker, text: str, pool: CodeSandbox, timeout_seconds: float) -> str:
    """`True`, `False`, or why it is neither."""
    reason = ""
    for value in (_TRUE, _FALSE):
        reason = pool.run_checks(checker.source, [_says(checker.function, text, value)], timeout_seconds).reason
        if not reason:
            return value
    return reason.partition(": ")[2] or reason


def _says(function: str, text: str, value: str) -> str:
    """The test that a call returns the boolean: its representation is read inside and compared outside."""
    return f"assert {function}({text!a}).__repr__() == {value!r}"


def _static_fault(source: str, function: str) -> CheckerVerdict | None:
    """What is wrong with a source before it runs anywhere."""
    if len(source) > MOST_SOURCE_CHARACTERS:
        return CheckerVerdict(CheckerFault.NO_FUNCTION, f"over {MOST_SOURCE_CHARACTERS} characters")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return CheckerVerdict(CheckerFault.NO_FUNCTION, f"no Python: {error}")
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if function not in functions or not _takes_one(functions[function].args) or not function.isidentifier():
        return CheckerVerdict(CheckerFault.NO_FUNCTION, f"no function {function!r} of one text")
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign | ast.Expr):
            return CheckerVerdict(CheckerFault.IMPORTS, f"{type(node).__name__} at line {node.lineno}")
    if needless := _needless_names(tree):
        return CheckerVerdict(CheckerFault.IMPORTS, ", ".join(sorted(needless)))
    return None


def _takes_one(arguments: ast.arguments) -> bool:
    needed = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return needed == 1 and all(default is not None for default in arguments.kw_defaults)


def _needless_names(tree: ast.Module) -> set[str]:
    """Modules that aren't allowed or that nothing uses, forbidden built-ins, and names between double underscores."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    needless = {name for name in used if name in FORBIDDEN_NAMES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            needless |= {alias.name for alias in node.names if alias.name.partition(".")[0] not in IMPORTS}
        elif isinstance(node, ast.ImportFrom):
            if node.level or (node.module or "").partition(".")[0] not in IMPORTS:
                needless.add(node.module or ".")
        elif isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            needless.add(node.attr)
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound = [(alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names]
            needless |= {name for as_name, name in bound if as_name not in used}
    return needless
