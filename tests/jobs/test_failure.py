"""What a failed job tells, and how it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rufus_core.errors import DataError, Preempted
from rufus_core.jobs.failure import forget_failure, tell_failure, told_failure


def test_a_failure_is_read_as_it_was_told_until_it_is_forgotten(tmp_path: Path) -> None:
    assert told_failure(tmp_path) is None
    tell_failure(tmp_path, DataError("no rows", where="my.jsonl:3", hint="add some"))
    told = told_failure(tmp_path)
    assert told is not None
    assert not told.preempted
    assert str(told.as_error()) == "my.jsonl:3: no rows (add some)"
    tell_failure(tmp_path, Preempted("stopped after step 2"))
    told = told_failure(tmp_path)
    assert told is not None
    assert told.preempted
    assert (told.where, told.hint) == (None, None)
    forget_failure(tmp_path)
    forget_failure(tmp_path)
    assert told_failure(tmp_path) is None


@pytest.mark.parametrize("text", ["", '{"type": "DataError", "wh', '{"other": 1}', "7"])
def test_what_was_not_told_to_its_end_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "error.json").write_text(text)
    assert told_failure(tmp_path) is None
