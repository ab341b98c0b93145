"""The points of the job protocol at which a test kills it; docs/lineage.md says what is true at each.

With RUFUS_CRASH_AT=<point> in its environment a job sends itself SIGKILL there.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum

VARIABLE = "RUFUS_CRASH_AT"


class CrashPoint(StrEnum):
    """In the order in which a job passes them."""

    BEFORE_LEASE = "before-lease"
    AFTER_LEASE = "after-lease"
    ATTEMPT = "attempt"
    BEFORE_RECORD = "before-record"
    AFTER_RECORD = "after-record"
    AFTER_RENAME = "after-rename"
    BEFORE_RELEASE = "before-release"


def pass_by(point: CrashPoint) -> None:
    """Die here if that is wanted. Raises ValueError for a point that doesn't exist."""
    wanted = os.environ.get(VARIABLE)
    if wanted is not None and CrashPoint(wanted) is point:
        os.kill(os.getpid(), signal.SIGKILL)
