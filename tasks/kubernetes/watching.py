"""Rings whenever something of a job may have changed, so that the cluster is asked then, and seldom else."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from rufus_core.errors import ConfigError
from tasks.kubernetes.cluster import Cluster, Unreachable, WatchExpired

MOST_SECONDS = 30.0  # between two tries


class Bell:
    """Watches a job and its pods on threads of its own. It only rings: what it heard, nobody relies on."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._rang, self._stopped = threading.Event(), threading.Event()

    def __enter__(self) -> Self:
        for pods in (False, True):
            threading.Thread(target=self._watch, args=(pods,), daemon=True).start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stopped.set()  # a watch that hears nothing ends when the server ends it

    def rang(self) -> bool:
        """Whether it did since the last time that this was asked."""
        rang = self._rang.is_set()
        self._rang.clear()
        return rang

    def _watch(self, pods: bool) -> None:
        failures = 0
        while not self._stopped.is_set():
            began, heard = time.monotonic(), 0
            try:
                for _ in self._cluster.changes(self._name, pods, self._stopped):
                    heard += 1
                    self._rang.set()
            except (Unreachable, WatchExpired):  # what was missed, the list at the beginning of the next watch says
                pass
            except ConfigError:  # who waits asks too, and tells it
                return
            if heard > 1 or time.monotonic() - began > MOST_SECONDS:  # beyond the list at the beginning
                failures = 0
            self._stopped.wait(backoff(failures))
            failures += 1


def backoff(failures: int) -> float:
    """Seconds until the next try."""
    return float(min(0.5 * 2**failures, MOST_SECONDS))
