"""Another try after a failure of the infrastructure, and after no other.

The failures are counted in a file of the job's folder, so that a run that starts again doesn't count from 0.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from rufus_core.errors import JobLost
from rufus_core.lineage.files import machine_hint
from rufus_core.settings import ExecutionSettings

FACTOR = 4.0  # by which each wait is longer than the one before
MAX_WAIT_SECONDS = 600.0

Made = TypeVar("Made")


def with_retries(
    make: Callable[[], Made],
    failures: Path,
    execution: ExecutionSettings,
    cancelled: threading.Event,
    warn: Callable[[str], None],
) -> Made:
    """What `make` gives. `failures` is the file that counts; it goes when `make` succeeds.

    Whoever calls gets one try, however many there were before; after it there are only as many as are left of
    `execution.job_tries`. Raises what `make` raises in the end.
    """
    while True:
        try:
            made = make()
        except (JobLost, OSError) as error:
            if isinstance(error, OSError) and machine_hint(error):  # a full disk, say: the user's to mend
                raise
            tries = _count(failures, error)
            if tries >= execution.job_tries:
                raise
            wait = min(execution.retry_seconds * FACTOR ** (tries - 1), MAX_WAIT_SECONDS)
            warn(f"{error}; try {tries + 1} of {execution.job_tries} in {wait:.3g} s")
            cancelled.wait(wait)  # `make` then raises JobCancelled
        else:
            failures.unlink(missing_ok=True)
            return made


def _count(failures: Path, error: Exception) -> int:
    """Note a failure; how many there are now."""
    failures.parent.mkdir(parents=True, exist_ok=True)
    with failures.open("a+") as file:
        file.write(json.dumps({"at": datetime.now(UTC).isoformat(), "why": str(error)}) + "\n")
        file.seek(0)
        return len(file.readlines())
