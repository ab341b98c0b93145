"""The points of the job protocol at which a test kills it; docs/lineage.md says what is true at each.

With RUFUS_CRASH_AT=<point> in its environment a job sends itself SIGKILL there, and notes that in the file
RUFUS_CRASH_LOG.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum
from pathlib import Path

CRASH_AT, CRASH_LOG = "RUFUS_CRASH_AT", "RUFUS_CRASH_LOG"


class CrashPoint(StrEnum):
    """In the order in which a job passes them."""

    BEFORE_LEASE = "before-lease"
    AFTER_LEASE = "after-lease"
    ATTEMPT = "attempt"
    BEFORE_RECORD = "before-record"
    AFTER_RECORD = "after-record"
    AFTER_RENAME = "after-rename"
    BEFORE_SHARE = "before-share"  # this and the next two only where a shared root is set
    AFTER_SHARED_FILES = "after-shared-files"
    AFTER_SHARED_RECORD = "after-shared-record"
    BEFORE_RELEASE = "before-release"


SHARING = (CrashPoint.BEFORE_SHARE, CrashPoint.AFTER_SHARED_FILES, CrashPoint.AFTER_SHARED_RECORD)


def pass_by(point: CrashPoint) -> None:
    """Die here if that is wanted. Raises ValueError for a point that doesn't exist."""
    wanted = os.environ.get(CRASH_AT)
    if wanted is not None and CrashPoint(wanted) is point:
        if CRASH_LOG in os.environ:
            with Path(os.environ[CRASH_LOG]).open("a", encoding="utf-8") as log:
                log.write(f"{point}\n")
        os.kill(os.getpid(), signal.SIGKILL)
