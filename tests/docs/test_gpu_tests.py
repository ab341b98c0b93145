"""docs/production.md lists every test that needs a GPU, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def marked(file: Path) -> set[str]:
    """Tests of a file that carry the mark `gpu`, by their path and name."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        f"{file.relative_to(ROOT)}::{node.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and any(ast.unparse(mark) == "pytest.mark.gpu" for mark in node.decorator_list)
    }


def test_what_needs_a_gpu_is_listed() -> None:
    tests = set().union(*(marked(file) for file in (ROOT / "tests").rglob("test_*.py")))
    page = (ROOT / "docs/production.md").read_text(encoding="utf-8")
    assert tests
    assert set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", page)) == tests
