"""What was seen of a job so far, and how long it may go on like that."""

from __future__ import annotations

import time
from collections.abc import Callable

from rufus_core.settings import KubernetesSettings
from tasks.kubernetes.cluster import Unreachable
from tasks.kubernetes.verdict import BEING_MADE, NO_POD, Ending, Failed, Running, TakenAway, Verdict, Waiting
from tasks.kubernetes.watching import backoff

LOOK_SECONDS = 10.0  # where no change was heard
SOON_SECONDS = 1.0  # where patience is measured
_UNTOLD_SECONDS = {NO_POD: LOOK_SECONDS, BEING_MADE: 60.0}  # what passes by itself, most often


class Patience:
    """Turns what lasts too long into an end, and tells the user what a job waits for.

    `verdict` is the last one; `gave_up` says that it couldn't begin, `lost` that its node doesn't end it.
    """

    def __init__(self, settings: KubernetesSettings, warn: Callable[[str], None]) -> None:
        self.verdict: Verdict = Running()
        self.gave_up = self.lost = False
        self._settings, self._warn = settings, warn
        self._since = time.monotonic()
        self._told = ""
        self._failures = 0

    def saw(self, verdict: Verdict) -> float:
        """Seconds until the next look."""
        self._failures = 0
        if _matter(verdict) != _matter(self.verdict):
            self._since = time.monotonic()
        self.verdict = verdict
        waited = time.monotonic() - self._since
        match verdict:
            case Waiting(why, patience):
                if waited >= _UNTOLD_SECONDS.get(why, 0.0):
                    self._tell(f"it waits in the cluster: {why}")
                allowed = _patience(self._settings, patience)
                if allowed is not None and waited >= allowed:
                    self.gave_up = True
                    self.verdict = Failed(why, f"execution.kubernetes.{patience}_patience_seconds is {allowed}")
            case Ending(nodes):
                allowed = self._settings.grace_seconds + self._settings.node_patience_seconds
                if waited >= allowed:
                    self.lost = True
                    self.verdict = TakenAway(f"its pod doesn't end on {nodes}, which may be lost")
            case _:
                self._told = ""
        return LOOK_SECONDS if isinstance(verdict, Running) else SOON_SECONDS

    def away(self, error: Unreachable) -> float:
        """The API server doesn't answer: the job goes on without it. Seconds until the next look."""
        self._tell(f"Kubernetes' API server doesn't answer, and the job goes on: {error}")
        self._failures += 1
        return backoff(self._failures)

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._warn(text)


def _matter(verdict: Verdict) -> tuple[type, str | None]:
    """What patience is measured by: the words of a message change."""
    return type(verdict), verdict.patience if isinstance(verdict, Waiting) else None


def _patience(settings: KubernetesSettings, which: str | None) -> int | None:
    limits = {"image": settings.image_patience_seconds, "room": settings.room_patience_seconds}
    return None if which is None else limits[which]
