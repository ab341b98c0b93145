"""A whole rollout on several engines: rounds of groups, turns with tools between them, engines that fail."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rufus_core.recipe.simulation.engine import Call, EngineModel, Segment, SimulatedEngine
from rufus_core.recipe.simulation.episodes import DrawnEpisode, EpisodeSource


@dataclass(frozen=True, slots=True)
class Failures:
    """Of each engine on its own, without memory. A turn that is cut off is asked again of another engine."""

    mean_seconds_between: float = math.inf
    recovery_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RolloutModel:
    """`kept_share` is the chance that a group lies in the window; 1 where nothing is filtered.

    A round issues what is short of `num_groups` times `oversample`; the next begins when the last episode has ended.
    """

    num_engines: int
    engine: EngineModel
    episodes: EpisodeSource
    num_groups: int
    group_size: int
    oversample: float = 1.0
    max_rounds: int = 3
    kept_share: float = 1.0
    failures: Failures = Failures()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    start: float
    end: float
    issued_groups: int
    kept_groups: int


@dataclass(slots=True)
class EpisodeTimes:
    episode: DrawnEpisode
    start: float
    end: float = math.nan
    tool_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """Seconds count from the start of the rollout. `trained` are the episodes of the groups that were kept.

    `outages` are the spans, of each engine, in which it was down.
    """

    seconds: float
    engines: tuple[SimulatedEngine, ...]
    outages: tuple[tuple[tuple[float, float], ...], ...]
    rounds: tuple[Round, ...]
    episodes: tuple[EpisodeTimes, ...]
    trained: tuple[DrawnEpisode, ...]
    lost_tokens: int  # drawn by engines that failed
    num_failures: int

    @property
    def drawn_tokens(self) -> int:
        return sum(engine.drawn for engine in self.engines)

    def segments(self) -> Iterator[tuple[int, Segment]]:
        for number, engine in enumerate(self.engines):
            yield from ((number, segment) for segment in engine.segments)


class _Event(NamedTuple):
    time: float
    order: int
    kind: Literal["boundary", "arrival", "failure", "recovery"]
    engine: int = -1
    version: int = 0  # of the engine's schedule: a boundary of an older one is void
    call: Call | None = None


class Rollout:
    """One simulated rollout; `run` plays it to its end."""

    def __init__(self, model: RolloutModel) -> None:
        self._model = model
        self._engines = [SimulatedEngine(model.engine) for _ in range(model.num_engines)]
        self._outages: list[list[tuple[float, float]]] = [[] for _ in self._engines]
        self._alive = [True] * model.num_engines
        self._versions = [0] * model.num_engines
        self._home: dict[int, int] = {}  # the engine of each episode that hasn't ended
        self._load = [0] * model.num_engines  # how many those are
        self._homeless: list[Call] = []  # while no engine lives
        self._events: list[_Event] = []
        self._order = itertools.count()
        self._fates = [np.random.default_rng((model.seed, 1, i)) for i in range(model.num_engines)]
        self._episodes: list[EpisodeTimes] = []
        self._turns: list[int] = []  # that each episode has ended
        self._open = 0  # episodes of this round that haven't ended
        self._rounds: list[Round] = []
        self._groups = 0
        self._kept: list[int] = []
        self._lost = self._num_failures = 0

    def run(self) -> RolloutResult:
        for number in range(len(self._engines)):
            self._await_failure(number, 0.0)
        now = 0.0
        while len(self._kept) < self._model.num_groups and len(self._rounds) < self._model.max_rounds:
            now = self._play_round(now)
        size = self._model.group_size
        trained = [self._episodes[group * size + i].episode for group in self._kept for i in range(size)]
        return RolloutResult(
            seconds=now,
            engines=tuple(self._engines),
            outages=tuple(map(tuple, self._outages)),
            rounds=tuple(self._rounds),
            episodes=tuple(self._episodes),
            trained=tuple(trained),
            lost_tokens=self._lost,
            num_failures=self._num_failures,
        )

    def _play_round(self, start: float) -> float:
        short = self._model.num_groups - len(self._kept)
        groups = range(self._groups, self._groups + math.ceil(short * self._model.oversample))
        self._groups = groups.stop
        for group in groups:
            for call in self._first_calls(group, start):
                self._send(call, start)
        self._open = len(groups) * self._model.group_size
        self._settle_all(start)
        now = start
        while self._open:
            event = heapq.heappop(self._events)
            now = max(now, event.time)
            self._handle(event)
        # A step that has begun is played to its end, past the event that it answers.
        end = max(times.end for times in self._episodes)
        kept = [group for group in groups if self._is_kept(group)]
        self._kept += kept[:short]
        self._rounds.append(Round(start, end, len(groups), len(kept)))
        return end

    def _first_calls(self, group: int, start: float) -> Iterator[Call]:
        generator = np.random.default_rng((self._model.seed, 2, group))
        prompt = self._model.episodes.prompt(generator)
        for _ in range(self._model.group_size):
            drawn = self._model.episodes.episode(prompt, generator)
            number = len(self._episodes)
            self._episodes.append(EpisodeTimes(drawn, start))
            self._turns.append(0)
            yield Call(number, group, prompt, context=prompt, left=drawn.turns[0].tokens)

    def _is_kept(self, group: int) -> bool:
        return bool(np.random.default_rng((self._model.seed, 3, group)).random() < self._model.kept_share)

    def _handle(self, event: _Event) -> None:
        if event.kind == "boundary":
            if event.version == self._versions[event.engine] and self._alive[event.engine]:
                self._engines[event.engine].advance(event.time)
                self._settle(event.engine)
        elif event.kind == "arrival":
            assert event.call is not None
            target = self._send(event.call, event.time)
            if target is not None:
                self._settle(target)
        elif event.kind == "failure":
            self._fail(event.engine, event.time)
        else:
            self._recover(event.engine, event.time)

    def _send(self, call: Call, now: float) -> int | None:
        """To the engine that holds what the episode's earlier turns computed, else to the one with fewest episodes."""
        target = self._home.get(call.episode)
        if target is None:
            living = [number for number, alive in enumerate(self._alive) if alive]
            if not living:
                self._homeless.append(call)
                return None
            target = min(living, key=lambda number: self._load[number])
            self._home[call.episode] = target
            self._load[target] += 1
        engine = self._engines[target]
        engine.advance(now)
        engine.submit(call, now)
        return target

    def _settle_all(self, now: float) -> None:
        for number in range(len(self._engines)):
            if self._alive[number] and self._engines[number].num_calls:
                self._engines[number].advance(now)
                self._settle(number)

    def _settle(self, number: int) -> None:
        """Take an engine over a boundary: calls that end go on to their tools, and its next boundary is entered."""
        engine = self._engines[number]
        ended_at = engine.clock
        for call in engine.settle():
            self._end_turn(call, number, ended_at)
        self._versions[number] += 1
        following = engine.next_boundary()
        if following is not None:
            self._push(following, "boundary", number, self._versions[number])

    def _end_turn(self, call: Call, number: int, now: float) -> None:
        times = self._episodes[call.episode]
        turn = times.episode.turns[self._turns[call.episode]]
        self._turns[call.episode] += 1
        if self._turns[call.episode] == len(times.episode.turns):
            times.end = now
            self._open -= 1
            self._leave_home(call.episode)
            return
        self._engines[number].park(call)
        times.tool_seconds += turn.tool_seconds
        call.context += turn.observation_tokens
        call.fresh, call.drawn = turn.observation_tokens, 0
        call.left = times.episode.turns[self._turns[call.episode]].tokens
        self._push(now + turn.tool_seconds, "arrival", call=call)

    def _leave_home(self, episode: int) -> None:
        self._load[self._home.pop(episode)] -= 1

    def _fail(self, number: int, now: float) -> None:
        engine = self._engines[number]
        engine.advance(now)
        self._alive[number] = False
        self._num_failures += 1
        calls = engine.crash()
        for episode in [episode for episode, home in self._home.items() if home == number]:
            self._leave_home(episode)  # also of those whose tools run
        back = max(now, engine.clock) + self._model.failures.recovery_seconds
        self._outages[number].append((max(now, engine.clock), back))
        self._push(back, "recovery", number)
        for call in calls:
            self._lost += call.drawn
            call.context, call.left, call.drawn = call.context - call.drawn, call.left + call.drawn, 0
            self._send(call, now)
        self._settle_all(now)

    def _recover(self, number: int, now: float) -> None:
        self._alive[number] = True
        self._await_failure(number, now)
        homeless, self._homeless = self._homeless, []
        for call in homeless:
            self._send(call, now)
        self._settle_all(now)

    def _await_failure(self, number: int, now: float) -> None:
        if math.isfinite(self._model.failures.mean_seconds_between):
            wait = self._fates[number].exponential(self._model.failures.mean_seconds_between)
            self._push(now + wait, "failure", number)

    def _push(
        self,
        time: float,
        kind: Literal["boundary", "arrival", "failure", "recovery"],
        engine: int = -1,
        version: int = 0,
        call: Call | None = None,
    ) -> None:
        heapq.heappush(self._events, _Event(time, next(self._order), kind, engine, version, call))
