"""Schema and identity of Coding RL records (CRL-D3, CRL-D4).

A record's ground truth is `{"modality": "functional", "tests": ["assert ...", ...]}` or
`{"modality": "stdin_stdout", "tests": [{"input": ..., "output": ...}, ...]}`, optionally with `timeout_seconds` (for
each test) and `float_tolerance`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from rufus_core.types import Json

MODALITIES = ("functional", "stdin_stdout")


def schema_fault(ground_truth: Mapping[str, Json]) -> str | None:
    """Why a record is dropped (CRL-D3); None when it can be graded."""
    tests = ground_truth.get("tests")
    if ground_truth.get("modality") not in MODALITIES:
        return "unknown modality"
    if not isinstance(tests, list) or not tests:
        return "no tests"
    if ground_truth["modality"] == "functional":
        return None if all(isinstance(test, str) and test.strip() for test in tests) else "an assert is empty"
    pairs = all(
        isinstance(test, dict) and all(isinstance(test.get(k), str) for k in ("input", "output")) for test in tests
    )
    return None if pairs and any(test["output"].strip() for test in tests) else "an input/output pair is incomplete"


def statement_key(statement: str) -> str:
    """The deduplication key: SHA-256 of the lowercased, whitespace-normalised statement (CRL-D4)."""
    return hashlib.sha256(" ".join(statement.lower().split()).encode()).hexdigest()
