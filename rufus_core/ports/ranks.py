"""The processes of a data-parallel training."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One of `size` processes that train together, and where they meet: rank 0 has the socket that listens there."""

    rank: int
    size: int
    host: str
    port: int
    listener: socket.socket | None = None


ResultT = TypeVar("ResultT")


class RankLauncher(Protocol):
    """Runs the ranks of a data-parallel training. Found through the entry point group `rufus.ranks`."""

    def require(self) -> None:
        """Raises ConfigError where it can't be used."""
        ...

    def run(
        self,
        work: Callable[[RankPlace, threading.Event], ResultT],
        size: int,
        cpus: int,
        address: str | None,
        resources: Mapping[str, float],
        stop: threading.Event,
    ) -> ResultT:
        """Call `work` in `size` processes at once, and return what rank 0 returns. None of them outlives the call.

        Args:
            work: hears of `stop` in rank 0. It and its result are pickled.
            cpus: of each rank.
            address: of the cluster; None: this machine.
            resources: further ones of each rank.

        Raises:
            RankLost: a process died.
            InfrastructureError: the cluster can't be reached, or has no room.
            RufusError: the first that a rank raised.
        """
        ...
