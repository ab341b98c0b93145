"""Environments of episodes on the nodes of a Ray cluster: tools and verifiers run there.

Each actor opens the stage's own gym. An episode belongs to one actor from its beginning to its end; when that dies, the
episode is aborted, as with any failure of the infrastructure, and is no reward of 0. Ray starts the actor anew for
later ones.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rufus_core.errors import InfrastructureError, RufusError
from rufus_core.ports.gym import Environment, Gym
from rufus_core.ports.ranks import GymActors
from rufus_core.types import Episode, Problem, ToolCall, ToolResult, ToolSchema, Verdict
from tasks.ray_places import PLACEMENT_SECONDS, actor_class, killed, loss_told

CALLS_PER_ACTOR = 64  # episodes of one actor that are waited for side by side
OPEN_SECONDS = 300.0  # an actor that died meanwhile is started anew first
_FOREVER = -1  # restarts of actors, and tries to open


@contextmanager
def running_gym(actors: GymActors, ranks: int) -> Iterator[Sequence[Gym]]:
    """Actors on the cluster that this process is connected to, and a gym for each rank. They are dead on leaving.

    Each gym shares its episodes out over all actors.

    Raises:
        InfrastructureError: the cluster has no room for them.
        RufusError: what an actor raises that opens the gym.
    """
    import ray

    options = {"max_concurrency": CALLS_PER_ACTOR, "max_restarts": _FOREVER, "scheduling_strategy": "SPREAD"}
    kind = actor_class(_Actor, {"CPU": float(actors.cpus)}, **options)
    running = [kind.remote(actors.open_gym) for _ in range(actors.count)]
    with killed(running):
        ready = [actor.ready.remote() for actor in running]
        if len(ray.wait(ready, num_returns=actors.count, timeout=PLACEMENT_SECONDS)[0]) < actors.count:
            raise InfrastructureError(
                f"the Ray cluster has no room for {actors.count} environment actors of {actors.cpus} CPUs each",
                hint="wait, or change execution.gym_actors",
            )
        for call in ready:
            _told(call)
        yield [_Actors(running, rank) for rank in range(ranks)]


class _Actors:
    """Takes turns with the actors, beginning with another one in each rank."""

    def __init__(self, actors: Sequence[Any], rank: int) -> None:
        self._actors, self._rank = actors, rank
        self._turns, self._turning = itertools.cycle([*actors[rank % len(actors) :], *actors]), threading.Lock()

    def __reduce__(self) -> tuple[type[_Actors], tuple[Sequence[Any], int]]:
        return _Actors, (self._actors, self._rank)

    def open(self, problem: Problem) -> Environment:
        with self._turning:
            actor = next(self._turns)
        return _Remote(actor, problem)

    def __enter__(self) -> _Actors:
        return self

    def __exit__(self, *exc: object) -> None:
        """The actors are their owner's."""


class _Remote:
    """An environment that lives in an actor."""

    def __init__(self, actor: Any, problem: Problem) -> None:
        self._actor = actor
        self._key: str
        self.tools: Sequence[ToolSchema]
        opening = actor.open.options(max_task_retries=_FOREVER).remote(problem)  # nothing has happened yet
        self._key, self.tools = _told(opening, OPEN_SECONDS)

    def call(self, call: ToolCall) -> ToolResult:
        result: ToolResult = _told(self._actor.call.remote(self._key, call))
        return result

    def score(self, episode: Episode) -> Verdict:
        verdict: Verdict = _told(self._actor.score.remote(self._key, episode))
        return verdict

    def cleanup(self) -> None:
        self._actor.cleanup.remote(self._key)  # nobody waits: what died has nothing left to clean up


class _Actor:
    """Opens the gym when it starts, and again when Ray starts it anew: environments of before are gone then."""

    def __init__(self, open_gym: Callable[[], Gym]) -> None:
        self._gym = open_gym()
        self._gym.__enter__()  # until the actor is killed, which ends what it started
        self._environments: dict[str, Environment] = {}

    def ready(self) -> None: ...

    def open(self, problem: Problem) -> Any:
        def opened() -> tuple[str, Sequence[ToolSchema]]:
            environment, key = self._gym.open(problem), uuid.uuid4().hex
            self._environments[key] = environment
            return key, tuple(environment.tools)

        return _or_error(opened)

    def call(self, key: str, call: ToolCall) -> Any:
        return _or_error(lambda: self._find(key).call(call))

    def score(self, key: str, episode: Episode) -> Any:
        return _or_error(lambda: self._find(key).score(episode))

    def cleanup(self, key: str) -> None:
        if (environment := self._environments.pop(key, None)) is not None:
            environment.cleanup()

    def _find(self, key: str) -> Environment:
        if key not in self._environments:
            raise InfrastructureError("the actor of this episode died, and its environment with it")
        return self._environments[key]


def _or_error(work: Callable[[], Any]) -> Any:
    """What it gives, or the RufusError that it raises: Ray would wrap it."""
    try:
        return work()
    except RufusError as error:
        return error


def _told(call: Any, seconds: float | None = None) -> Any:
    """Raises InfrastructureError where the actor is gone, and what it said that was an error."""
    import ray

    try:
        with loss_told(lambda why: InfrastructureError(f"the actor of this episode died: {why}")):
            told = ray.get(call, timeout=seconds)
    except ray.exceptions.GetTimeoutError as error:
        raise InfrastructureError(f"no actor opened this episode in {seconds:.0f} s") from error
    if isinstance(told, RufusError):
        raise told
    return told
