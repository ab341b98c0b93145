"""What tests that run untrusted code share."""

from pathlib import Path

import pytest

from rufus_core.sandbox.isolation import probe

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def require_isolation() -> None:
    if not (report := probe()).isolated:
        pytest.skip(f"this machine can't isolate code: {report.reason}")


def shared_file(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path
