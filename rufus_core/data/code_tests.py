"""Turns the tests of public data sets into test statements. Everything is parsed, nothing runs."""

from __future__ import annotations

import ast
import base64
import binascii
import builtins
import json
import pickletools
import zlib

from rufus_core.data.code_records import FaultKind, RecordFault
from rufus_core.types import Json

# What solutions of LeetCode-like problems take for granted. The built-ins come last, so that none stays shadowed.
CUSTOMARY_IMPORTS = """\
import bisect, collections, functools, heapq, itertools, math, operator, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
from builtins import *"""
_UNPACKED_BYTES = 256 << 20
# The opcodes of a pickled text, none of which calls anything.
_TEXT_OPCODES = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_FRAME_OPCODES = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}


def parsed(code: str, field: str) -> ast.Module:
    """Raises RecordFault for what is no Python."""
    try:
        return ast.parse(code.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        raise RecordFault(FaultKind.NOT_PYTHON, field, f"is no Python: {error or 'nested too deeply'}") from error


def asserts_of_calls(name: str, inputs: list[Json], outputs: list[Json], in_solution: bool) -> tuple[list[str], str]:
    """Asserts that `name`, called with each input, gives each output; and the setup that such solutions expect.

    An input is a list of arguments (TACO, APPS), or a text with the JSON of one argument in each line, and then its
    output is JSON too (LiveCodeBench). Where every output is a list of one, the value itself is right as well: data
    sets disagree on whether outputs are wrapped.
    """
    calls = [_arguments(given, f"tests.inputs[{index}]") for index, given in enumerate(inputs)]
    values = [
        _from_json(value, f"tests.outputs[{index}]") if isinstance(given, str) else value
        for index, (given, value) in enumerate(zip(inputs, outputs, strict=True))
    ]
    function = f"Solution().{name}" if in_solution else name
    wrapped = not any(isinstance(given, str) for given in inputs) and all(
        isinstance(value, list) and len(value) == 1 for value in values
    )
    tests = []
    for arguments, value in zip(calls, values, strict=True):
        right = f"in ({value[0]!r}, {value!r})" if wrapped else f"== {value!r}"
        tests.append(f"assert {function}({', '.join(map(repr, arguments))}) {right}")
    return tests, CUSTOMARY_IMPORTS


def asserts_of_check(test: str, entry_point: str) -> list[str]:
    """HumanEval's `check(candidate)` as one statement for each assert, or as a whole where it is more than asserts."""
    tree = parsed(test, "tests")
    check = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"), None)
    if check is None or not check.args.args:
        raise RecordFault(FaultKind.MISSING, "tests", "there is no function `check(candidate)`")
    body = [node for node in check.body if not _is_remark(node)]
    if not body or not all(isinstance(node, ast.Assert) for node in body):
        return [f"{test.strip()}\ncheck({entry_point})"]
    renamed = _Rename(check.args.args[0].arg, entry_point)
    asserts = [ast.unparse(renamed.visit(node)) for node in body]
    return [text for text in asserts if entry_point in text] or asserts


def before_function(prompt: str, name: str) -> str:
    """HumanEval's helpers: what a prompt defines before the function that it asks for."""
    tree = parsed(f"{prompt}\n    pass", "prompt")
    before = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            break
        before.append(ast.unparse(node))
    return "\n".join(before)


def called_name(tests: Json) -> str | None:
    """The name of a candidate's function that the first test calls; None where it can't be told."""
    if not isinstance(tests, list) or not tests or not isinstance(tests[0], str):
        return None
    calls = [node.func for node in ast.walk(parsed(tests[0], "tests[0]")) if isinstance(node, ast.Call)]
    names = [node.id for node in calls if isinstance(node, ast.Name)]
    return next((name for name in names if not hasattr(builtins, name)), None)


def packed_cases(value: Json, field: str) -> Json:
    """LiveCodeBench's test cases: JSON, or base64 of a compressed pickle of JSON. The pickle is read, not loaded."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        value = _unpacked(value, field)
    return _from_json(value, field)


def _unpacked(value: str, field: str) -> str:
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(value, validate=True), _UNPACKED_BYTES)
        if inflate.unconsumed_tail:
            raise RecordFault(FaultKind.TOO_LARGE, field, f"more than {_UNPACKED_BYTES} bytes when unpacked")
        texts = []
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _TEXT_OPCODES:
                texts.append(argument)
            elif opcode.name not in _FRAME_OPCODES:
                raise RecordFault(FaultKind.WRONG_TYPE, field, f"is no packed text: {opcode.name} in it")
    except (binascii.Error, zlib.error, ValueError) as error:
        raise RecordFault(FaultKind.WRONG_TYPE, field, f"is no packed text: {error}") from error
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise RecordFault(FaultKind.WRONG_TYPE, field, f"is no packed text: {len(texts)} texts in it")
    return texts[0]


def _arguments(given: Json, field: str) -> list[Json]:
    if isinstance(given, str):
        return [_from_json(line, field) for line in given.split("\n") if line.strip()]
    if isinstance(given, list):
        return given
    raise RecordFault(FaultKind.WRONG_TYPE, field, "must be a list of arguments, or a text of JSON lines")


def _from_json(text: Json, field: str) -> Json:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordFault(FaultKind.WRONG_TYPE, field, f"is no JSON: {error}") from error


def _is_remark(node: ast.stmt) -> bool:
    """A docstring, `pass`, or HumanEval's `assert True`, which says nothing of the candidate."""
    if isinstance(node, ast.Assert):
        return isinstance(node.test, ast.Constant)
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


class _Rename(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._new, node.ctx) if node.id == self._old else node
