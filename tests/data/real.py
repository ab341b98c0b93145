"""Real public data beside the repository, for tests that skip where it is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def real(name: str) -> Path:
    """The path of a file or folder of the shared data; skips the test when it isn't there."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"../shared/data/{name} is absent")
    return path
