"""The rooms of the house: what may import what (the contracts stand in pyproject.toml)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[1]
LIGHT = ("types", "settings", "errors", "lineage", "recipe.load", "recipe.graph", "cli.main", "cli.run")


def test_rooms_import_downwards_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(cache_dir=None) == EXIT_STATUS_SUCCESS


def test_what_starts_quickly_imports_neither_torch_nor_prefect_nor_mlflow() -> None:
    modules = ", ".join(f"rufus_core.{name}" for name in LIGHT)
    heavy = "{'torch', 'transformers', 'prefect', 'mlflow', 'matplotlib'}"
    code = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
