"""Ranks of a data-parallel training as Ray actors, each in a process of its own where Ray has room for it."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from rufus_core.errors import ConfigError, InfrastructureError, RankLost, RufusError
from rufus_core.ports.gym import Gym
from rufus_core.ports.ranks import EngineServer, GymActors, RankPlace
from tasks.ray_cluster import own_cluster
from tasks.ray_engines import running_engines
from tasks.ray_gym import running_gym
from tasks.ray_places import actor_class, first_line, killed, loss_told, place_in, placed_group

CONNECT_SECONDS = 10.0
_GRACE_SECONDS = 10.0  # in which Ray may tell more of a lost rank
_POLL_SECONDS = 0.2

_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")

ResultT = TypeVar("ResultT")
Work = Callable[[RankPlace, threading.Event], ResultT]


class RayRanks:
    """Starts ranks on a cluster of the job's own, or on one that runs already (`ray_address`)."""

    def require(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "training in several processes needs Ray",
                where="execution.data_parallel",
                hint="pip install 'rufus-air[ray]', or leave it at 1",
            )

    def run(
        self,
        work: Work[ResultT],
        size: int,
        cpus: int,
        address: str | None,
        resources: Mapping[str, float],
        stop: threading.Event,
        together: int = 1,
        engines: Sequence[EngineServer] = (),
        gym: GymActors | None = None,
    ) -> ResultT:
        each = {"CPU": float(cpus), **resources}
        bundles = [_times(each, count) for count in shares(size, together)]
        with ExitStack() as stack:
            address = address or _around_us()
            if address is None:
                others = sum(math.ceil(engine.resources.get("CPU", 0)) for engine in engines) + _cpus(gym)
                address = stack.enter_context(own_cluster(size * cpus + others))
            stack.enter_context(_connected(address))
            apart = [engine for engine in engines if not engine.beside]
            group = stack.enter_context(placed_group([*bundles, *(engine.resources for engine in apart)]))
            ranks = stack.enter_context(_placed(size, together, each, group))
            meeting = ranks[0].listen.remote()
            host, port = _result([meeting], meeting)
            free = itertools.count(len(bundles))
            of_engines = [each.beside[0] // together if each.beside else next(free) for each in engines]
            devices = [_devices([ranks[rank] for rank in each.beside]) for each in engines]
            urls = stack.enter_context(running_engines(engines, group, of_engines, devices))
            gyms = stack.enter_context(running_gym(gym, size)) if gym else [None] * size
            places = [RankPlace(rank, size, host, port, engines=urls, gym=own) for rank, own in enumerate(gyms)]
            running = [actor.run.remote(work, place) for actor, place in zip(ranks, places, strict=True)]
            return _first_result(running, ranks[0].stop.remote, stop)

    @contextmanager
    def gym(self, actors: GymActors, address: str | None) -> Iterator[Gym]:
        with ExitStack() as stack:
            address = address or _around_us() or stack.enter_context(own_cluster(_cpus(actors)))
            stack.enter_context(_connected(address))
            [gym] = stack.enter_context(running_gym(actors, 1))
            yield gym


class _Rank:
    """One rank. `stop` comes from another thread than `run`, which works until the end."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._listener: socket.socket | None = None

    def ready(self) -> None: ...

    def gpus(self) -> list[str]:
        """Those that Ray gave it, by their numbers on the node."""
        import ray

        return list(ray.get_runtime_context().get_accelerator_ids().get("GPU", []))

    def listen(self) -> tuple[str, int]:
        """Where the ranks will meet, in rank 0."""
        import ray

        self._listener = socket.create_server((ray.util.get_node_ip_address(), 0))
        host, port = self._listener.getsockname()[:2]
        return host, port

    def run(self, work: Work[Any], place: RankPlace) -> Any:
        """What `work` returns, or the RufusError or OSError that it raises: Ray would wrap it, and lose its number."""
        try:
            return work(replace(place, listener=self._listener), self._stop)
        except RufusError as error:
            return error
        except OSError as error:
            traceback.print_exc()  # to the log: which file it was
            return error

    def stop(self) -> None:
        self._stop.set()


def _cpus(gym: GymActors | None) -> int:
    return gym.count * gym.cpus if gym else 0


def _devices(ranks: Sequence[Any]) -> str | None:
    """The GPUs of these ranks, as CUDA lists them; None where there are no ranks."""
    if not ranks:
        return None
    asked = [rank.gpus.remote() for rank in ranks]
    return ",".join(gpu for call in asked for gpu in _result(asked, call))


@contextmanager
def _connected(address: str) -> Iterator[None]:
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # Ray installs a handler that ends the process
    try:
        _knock(address)
        ray.init(address=address, logging_level="warning")
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        hint = "is a cluster running there? Without execution.ray_address the job starts one of its own"
        raise InfrastructureError(
            f"can't use this Ray cluster: {first_line(error)}", where=address, hint=hint
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raises OSError where nothing listens at `host:port` or `ray://host:port`: Ray tries for a quarter of an hour."""
    import ray

    host, _, port = address.removeprefix("ray://").rpartition(":")
    host = host.strip("[]")
    if not address.startswith("ray://") and host in _LOOPBACK_HOSTS:
        host = ray.util.get_node_ip_address()  # as Ray reads it, unless it is told to keep to the loopback interface
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise OSError(f"{error} at {host}:{port}") from error


@contextmanager
def _placed(size: int, together: int, resources: Mapping[str, float], group: Any) -> Iterator[list[Any]]:
    """Actors, each with its resources. They are killed on leaving, whatever they do."""
    ranks = [
        actor_class(_Rank, resources, max_concurrency=2, scheduling_strategy=place_in(group, rank // together)).remote()
        for rank in range(size)
    ]
    with killed(ranks):
        ready = [rank.ready.remote() for rank in ranks]
        for call in ready:
            _result(ready, call)
        yield ranks


def shares(size: int, together: int) -> list[int]:
    """How many ranks each place of the group holds."""
    return [min(together, size - first) for first in range(0, size, together)]


def _times(resources: Mapping[str, float], count: int) -> dict[str, float]:
    return {name: amount * count for name, amount in resources.items()}


def _around_us() -> str | None:
    """The cluster whose job this process is."""
    return os.environ.get("RAY_ADDRESS") if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else None


def _first_result(running: Sequence[Any], tell_stop: Callable[[], object], stop: threading.Event) -> Any:
    """What rank 0 returns. Raises what a rank raises first."""
    import ray

    waiting, told = list(running), False
    while True:
        if stop.is_set() and not told:
            tell_stop()
            told = True
        done, waiting = ray.wait(waiting, timeout=_POLL_SECONDS)
        for call in done:
            result = _result(running, call)
            if isinstance(result, RankLost):  # another one's death, of which Ray can tell more
                for other in ray.wait(waiting, timeout=_GRACE_SECONDS)[0] if waiting else ():
                    _result(running, other)
            if isinstance(result, RufusError | OSError):
                raise result
            if call == running[0]:
                return result


def _result(calls: Sequence[Any], call: Any) -> Any:
    """What a rank's call returned; `calls` are those of all ranks. Raises RankLost where its process is gone."""
    import ray

    def lost(why: str) -> RankLost:
        what = f"rank {calls.index(call)} of {len(calls)} died: {why}"
        return RankLost(what, hint="the next run goes on from the last state")

    with loss_told(lost):
        return ray.get(call)
