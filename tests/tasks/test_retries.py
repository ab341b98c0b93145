"""Another try: after which failures, how many, and that the count survives."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rufus_core.errors import DataError, JobFailed, JobLost
from rufus_core.settings import ExecutionSettings
from tasks.jobs import JobCancelled
from tasks.retries import with_retries

AT_ONCE = ExecutionSettings(retry_seconds=0.0)
LOST = JobLost("gone")


class Making:
    """Raises these one after the other, then gives "made"."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.num_tries = 0

    def __call__(self) -> str:
        self.num_tries += 1
        if self.errors:
            raise self.errors.pop(0)
        return "made"


def attempt(make: Callable[[], str], folder: Path, warned: list[str] | None = None) -> str:
    warn = (warned if warned is not None else []).append
    return with_retries(make, folder / "lost.jsonl", AT_ONCE, threading.Event(), warn)


@pytest.mark.parametrize("error", [LOST, OSError(errno.EIO, "Input/output error")])
def test_what_the_infrastructure_broke_is_tried_again_and_told(error: Exception, tmp_path: Path) -> None:
    make, warned = Making(error, error), list[str]()
    assert attempt(make, tmp_path, warned) == "made"
    assert make.num_tries == 3
    assert [text.split("; ")[1] for text in warned] == ["try 2 of 3 in 0 s", "try 3 of 3 in 0 s"]


@pytest.mark.parametrize(
    "error", [JobFailed("a bug"), DataError("no such row"), JobCancelled(), OSError(errno.ENOSPC, "No space left")]
)
def test_what_another_try_would_not_mend_is_tried_once(error: Exception, tmp_path: Path) -> None:
    make = Making(error)
    with pytest.raises(type(error)):
        attempt(make, tmp_path)
    assert make.num_tries == 1


def test_the_count_survives_so_that_a_later_run_tries_once(tmp_path: Path) -> None:
    first, second = Making(*[LOST] * 9), Making(*[LOST] * 9)
    with pytest.raises(JobLost):
        attempt(first, tmp_path)
    with pytest.raises(JobLost):
        attempt(second, tmp_path)
    assert (first.num_tries, second.num_tries) == (3, 1)


def test_success_starts_the_count_anew(tmp_path: Path) -> None:
    attempt(Making(LOST, LOST), tmp_path)
    again = Making(LOST, LOST)
    assert attempt(again, tmp_path) == "made"
    assert again.num_tries == 3


def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    stopped = threading.Event()
    make = Making(LOST, JobCancelled())
    with pytest.raises(JobCancelled):
        with_retries(make, tmp_path / "n", ExecutionSettings(retry_seconds=600.0), stopped, lambda _: stopped.set())
    assert make.num_tries == 2
