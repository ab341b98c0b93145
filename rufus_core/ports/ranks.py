"""The processes of a training in several ranks, and the engines beside them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rufus_core.ports.gym import Gym


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One of `size` processes that train together, and where they meet: rank 0 has the socket that listens there.

    `engines` are the addresses of the training's rollout engines; `gym` is where its environments are played, where
    that isn't in the ranks themselves.
    """

    rank: int
    size: int
    host: str
    port: int
    listener: socket.socket | None = None
    engines: tuple[str, ...] = ()
    gym: Gym | None = None


@dataclass(frozen=True, slots=True)
class GymActors:
    """Processes of a cluster that play environments: each opens the gym itself."""

    open_gym: Callable[[], Gym]  # is pickled
    count: int
    cpus: int  # of each


@dataclass(frozen=True, slots=True)
class EngineServer:
    """How to start a rollout engine: `{host}` and `{port}` in its command are where it is to listen.

    It is ready once GET `health` answers with success. `resources` are asked of the cluster ("CPU", "GPU", others).
    With `beside` it takes turns on the GPUs of these ranks, which share a node, and is put there (SLM-10).
    """

    command: tuple[str, ...]
    resources: Mapping[str, float]
    health: str = "/health"
    start_seconds: float = 1800.0  # weights of a hundred gigabytes take their time
    beside: tuple[int, ...] = ()


ResultT = TypeVar("ResultT")


class RankLauncher(Protocol):
    """Runs the ranks of a training, and its environments. Found through the entry point group `rufus.ranks`."""

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
        together: int = 1,
        engines: Sequence[EngineServer] = (),
        gym: GymActors | None = None,
    ) -> ResultT:
        """Call `work` in `size` processes at once, and return what rank 0 returns. None of them outlives the call.

        Args:
            work: hears of `stop` in rank 0. It and its result are pickled.
            cpus: of each rank.
            address: of the cluster; None: this machine.
            resources: further ones of each rank.
            together: how many neighbouring ranks share a node (those of one tensor-parallel group, say).
            engines: started beside them, in the same group of places; each rank hears of their addresses.
            gym: started for all ranks together, spread over the cluster.

        Raises:
            RankLost: a process died.
            InfrastructureError: the cluster can't be reached, or has no room.
            RufusError, OSError: the first that a rank raised.
        """
        ...

    def gym(self, actors: GymActors, address: str | None) -> AbstractContextManager[Gym]:
        """A gym whose episodes are played by these actors, for a training in one process.

        An episode whose actor dies is aborted. Raises InfrastructureError where the cluster has no room.

        Args:
            address: of the cluster; None: this machine.
        """
        ...
