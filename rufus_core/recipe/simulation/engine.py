"""One rollout engine: what waits, what runs, and what a bounded cache of keys and values makes it put off."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rufus_core.recipe.simulation.costs import DecodeCost, decode_seconds, steps_until


@dataclass(frozen=True, slots=True)
class EngineModel:
    """`reserve_tokens` are kept free for each sequence that runs, before another is let in."""

    cost: DecodeCost
    cache_tokens: int
    max_running: int
    reserve_tokens: int = 0


@dataclass(slots=True, eq=False)
class Call:
    """One turn's request. `context` are the tokens that it goes on from, `left` those that it is still to draw."""

    episode: int
    group: int
    prompt: int
    context: int
    left: int
    cached: bool = False  # an earlier turn's tokens are in the engine's cache, but for `fresh` of them
    fresh: int = 0
    drawn: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Work of an engine between two moments. `batch` sequences run; while prompts are computed they wait."""

    start: float
    end: float
    batch: int
    prefill: bool = False


@dataclass(slots=True)
class SimulatedEngine:
    """Continuous batching: sequences join and leave between steps; the newest goes back when the cache is full.

    The clock stands at the boundary between two steps, and never goes back. Prompts of a group are computed once; what
    an episode held stays cached while its tools run, until others need the room.
    """

    model: EngineModel
    clock: float = 0.0
    waiting: deque[Call] = field(default_factory=deque)
    segments: list[Segment] = field(default_factory=list)
    drawn: int = 0  # tokens
    prefilled: int = 0  # tokens
    retractions: int = 0
    _steps: int = 0
    _held: int = 0  # tokens of what runs
    _running: dict[Call, int] = field(default_factory=dict)  # in the order they joined: the step at which each ends
    _ends: list[tuple[int, int, Call]] = field(default_factory=list)  # a heap of the same; what was retracted is stale
    _parked: dict[int, int] = field(default_factory=dict)  # tokens of episodes whose tools run, oldest first
    _parked_tokens: int = 0
    _prompts: set[int] = field(default_factory=set)  # groups whose prompt was computed here
    _order: Iterator[int] = field(default_factory=itertools.count)

    @property
    def num_calls(self) -> int:
        return len(self._running) + len(self.waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def holds(self, episode: int) -> bool:
        """Whether the cache has what an episode's earlier turns computed."""
        return episode in self._parked

    def submit(self, call: Call, now: float) -> None:
        """Queue a call. It joins at the next boundary that `settle` stands at."""
        self.clock = max(self.clock, now) if not self.num_calls else self.clock
        call.cached = self._unpark(call.episode)
        self.waiting.append(call)

    def next_boundary(self) -> float | None:
        """When the next call ends or the cache is full, if nothing joins before."""
        if not self._running:
            return None
        return self.clock + decode_seconds(self.model.cost, self._steps_to_event(), len(self._running), self._held)

    def advance(self, until: float) -> None:
        """Take whole steps until the clock is at `until` or after it; never beyond the next boundary."""
        if not self._running or until <= self.clock:
            return
        batch = len(self._running)
        most = self._steps_to_event()
        steps = steps_until(self.model.cost, until - self.clock, most, batch, self._held)
        seconds = decode_seconds(self.model.cost, steps, batch, self._held)
        self._work(seconds, batch)
        self._steps += steps
        self._held += steps * batch
        self.drawn += steps * batch

    def settle(self) -> list[Call]:
        """Let go of calls that have ended, which are returned, take back what doesn't fit, and let others in."""
        ended = []
        while self._ends and self._ends[0][0] <= self._steps:
            call = heapq.heappop(self._ends)[2]
            if self._running.get(call) == self._steps:
                self._leave(call)
                ended.append(call)
        self._retract()
        self._admit()
        return ended

    def park(self, call: Call) -> None:
        """Keep what a call has computed, as long as there is room, for the turn after its tools."""
        self._parked[call.episode] = call.context
        self._parked_tokens += call.context

    def crash(self) -> list[Call]:
        """Lose everything that is held. Returns the calls, each as far as it was, oldest first."""
        for call in list(self._running):
            self._leave(call)
            self.waiting.append(call)
        lost = list(self.waiting)
        self.waiting.clear()
        self._ends.clear()
        self._parked.clear()
        self._prompts.clear()
        self._parked_tokens = 0
        return lost

    def _steps_to_event(self) -> int:
        while self._running.get(self._ends[0][2]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        to_end = self._ends[0][0] - self._steps
        to_full = (self.model.cache_tokens - self._held) // len(self._running)
        return min(to_end, max(1, to_full))

    def _leave(self, call: Call) -> None:
        """Stop running: the call has as many tokens more as there were steps since it joined."""
        end = self._running.pop(call)
        drawn = call.left - (end - self._steps)
        call.context += drawn
        call.drawn += drawn
        call.left -= drawn
        self._held -= call.context

    def _retract(self) -> None:
        while len(self._running) > 1 and self._held + len(self._running) > self.model.cache_tokens:
            newest = next(reversed(self._running))
            self._leave(newest)
            newest.cached = False
            self.waiting.appendleft(newest)
            self.retractions += 1

    def _admit(self) -> None:
        computed = 0
        while self.waiting and len(self._running) < self.model.max_running and self._has_room(self.waiting[0]):
            call = self.waiting.popleft()
            computed += self._uncached(call)
            self._prompts.add(call.group)
            self._held += call.context
            self._running[call] = self._steps + call.left
            heapq.heappush(self._ends, (self._steps + call.left, next(self._order), call))
        while self._parked and self._held + self._parked_tokens > self.model.cache_tokens:
            self._unpark(next(iter(self._parked)))
        self.prefilled += computed
        self._work(computed * self.model.cost.prefill_seconds, len(self._running), prefill=True)

    def _has_room(self, call: Call) -> bool:
        """Alone, a call is let in whatever it needs: else nothing would ever run."""
        running = len(self._running)
        reserved = self.model.reserve_tokens * (running + 1)
        return not running or self._held + call.context + reserved <= self.model.cache_tokens

    def _uncached(self, call: Call) -> int:
        if call.cached:
            return call.fresh
        return call.context - (call.prompt if call.group in self._prompts else 0)

    def _unpark(self, episode: int) -> bool:
        tokens = self._parked.pop(episode, None)
        self._parked_tokens -= tokens or 0
        return tokens is not None

    def _work(self, seconds: float, batch: int, prefill: bool = False) -> None:
        if seconds > 0:
            self.segments.append(Segment(self.clock, self.clock + seconds, batch, prefill))
            self.clock += seconds
