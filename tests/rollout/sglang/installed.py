"""SGLang as `make install-sglang` installs it, and what it needs to start where there is no GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rufus_core.settings import SGLangSettings

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("RUFUS_SGLANG_PYTHON", ROOT / ".sglang/bin/python"))
SUPPORT = ROOT / "tests/support/sglang_cpu"  # its sitecustomize stands in for what has no build for a CPU
PACKAGE = next(PYTHON.parents[1].glob("lib/python*/site-packages/sglang"), None)  # an install can end before it

needs_sglang = pytest.mark.skipif(PACKAGE is None, reason="SGLang isn't installed: make install-sglang")


def cpu_settings(**changes: Any) -> SGLangSettings:
    """One server of a miniature on this machine's CPU."""
    given: dict[str, Any] = {
        "python": str(PYTHON),
        "device": "cpu",
        "memory_fraction": 0.05,
        "max_total_tokens": 4096,
        "start_seconds": 500,
        "environment": {"PYTHONPATH": str(SUPPORT)},
    }
    return SGLangSettings.model_validate(given | changes)
