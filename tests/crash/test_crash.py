"""The crash suite in short: a handful of kills. `make crash` does a hundred and more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.suite import run_suite

pytestmark = pytest.mark.slow


def test_a_run_that_is_killed_again_and_again_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    report = run_suite(tmp_path, num_kills=5, seed=3)
    assert report.faults == []
    assert report.kills.total() >= 5
