"""The engine on a thread of its own, stepped as long as there is work; requests and tokens go through an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from rufus_core.errors import EngineError, LineageError
from rufus_core.ports.engine import GenerateRequest, GenerateResult
from rufus_core.rollout.engine import EmbeddedEngine, Progress
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.rollout.server.refusal import Refusal

ValueT = TypeVar("ValueT")
_WHERE_FROM = {"_name_or_path", "transformers_version", "dtype", "architectures", "use_cache"}  # of a configuration
PauseMode = Literal["abort", "retract", "in_place"]


@dataclass(slots=True)
class WeightSpan:
    """Sampled tokens [start, end) of one weight version."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one or more steps added to a generation; `result` comes with the last."""

    token_ids: list[int]
    logprobs: list[float]
    result: GenerateResult | None = None


@dataclass(slots=True)
class Counts:
    """Requests since the start: `added` = `finished` + `aborted` + those in flight."""

    added: int = 0
    finished: int = 0
    aborted: int = 0


@dataclass(eq=False, slots=True)
class Generation:
    """One request in flight. Read it to its end, or abort it."""

    request: GenerateRequest
    every_token: bool
    started: float = field(default_factory=time.monotonic)
    spans: list[WeightSpan] = field(default_factory=list)
    ended: bool = False  # read to its end
    _news: asyncio.Queue[Tokens | EngineError] = field(default_factory=asyncio.Queue)
    _aborting: bool = False

    async def tokens(self) -> AsyncIterator[Tokens]:
        """As they are sampled, or all at once without `every_token`. Raises EngineError when the engine failed."""
        while True:
            news = await self._news.get()
            self.ended = isinstance(news, EngineError) or news.result is not None
            if isinstance(news, EngineError):
                raise Refusal(str(news), status=503)
            yield news
            if self.ended:
                return

    def _note(self, progress: Progress) -> None:
        version, start = progress.weight_version, self.spans[-1].end if self.spans else 0
        end = len(progress.result.output_ids) if progress.result else start + len(progress.token_ids)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1].end = end
        elif end > start:
            self.spans.append(WeightSpan(version, start, end))


class EngineService:
    """Owns the engine: after `start` nothing else may touch it.

    Args:
        policy: whose model the engine runs; what may replace its weights must be of the same make.
        most_in_flight: requests that run or wait; more are refused with 503.
    """

    def __init__(self, engine: EmbeddedEngine, policy: Policy, most_in_flight: int = 1024) -> None:
        self._engine, self._policy, self.most_in_flight = engine, policy, most_in_flight
        self.context_length, self.vocab_size = engine.context_length, engine.vocab_size
        self.counts = Counts()
        self._wake = threading.Condition()
        self._actions: deque[Callable[[], None]] = deque()  # what the engine's thread does before its next step
        self._in_flight: dict[str, Generation] = {}  # touched by the engine's thread only, as are the next two
        self._paused = False
        self._failure: EngineError | None = None
        self._stopping = False
        self._updating = asyncio.Lock()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- from the event loop -----------------------------------------------------------------------------------------

    @property
    def weight_version(self) -> str:
        return self._engine.weight_version

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def failure(self) -> EngineError | None:
        """Why the engine can't go on, if it can't."""
        return self._failure

    def load(self) -> dict[str, int | bool]:
        counts = self.counts
        return {
            "num_running": self._engine.num_running,
            "num_waiting": self._engine.num_waiting,
            "num_added": counts.added,
            "num_finished": counts.finished,
            "num_aborted": counts.aborted,
            "paused": self._paused,
        }

    async def start(self) -> None:
        """Begin to serve the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def end_all(self) -> None:
        """Take no more requests and abort what is in flight; each still gets its partial result."""
        self._post(self._abort_all)
        with self._wake:
            self._stopping = True
            self._wake.notify()

    async def stop(self) -> None:
        """End all, and wait for the engine's thread."""
        self.end_all()
        while self._thread.is_alive():  # its last results come through this loop
            await asyncio.sleep(0.005)

    async def submit(self, requests: Sequence[GenerateRequest], every_token: bool = False) -> list[Generation]:
        """Queue requests, all or none.

        Raises:
            Refusal: there are too many, or the server ends.
            EngineError: one of them can't be served.
        """
        generations = [Generation(request, every_token) for request in requests]
        try:
            await self._between_steps(lambda: self._add(generations))
        except asyncio.CancelledError:  # whoever asked is gone, and the requests may be in already
            self.abort(generations)
            raise
        return generations

    @contextlib.asynccontextmanager
    async def running(
        self, requests: Sequence[GenerateRequest], every_token: bool = False
    ) -> AsyncIterator[list[Generation]]:
        """As `submit`; what isn't read to its end when the block ends, is aborted."""
        generations = await self.submit(requests, every_token)
        try:
            yield generations
        finally:
            self.abort(generations)

    def abort(self, generations: Sequence[Generation]) -> None:
        """End those that still run. Their partial results are delivered."""
        if left := [each for each in generations if not each.ended]:
            self._post(lambda: self._abort(left))

    async def abort_rid(self, rid: str) -> None:
        """End the request of this id and, as in SGLang, those whose id begins with it. Unknown ids do nothing."""
        await self._between_steps(
            lambda: self._abort([each for key, each in self._in_flight.items() if key.startswith(rid)])
        )

    async def abort_all(self) -> None:
        await self._between_steps(self._abort_all)

    async def pause(self, mode: PauseMode) -> None:
        """Stop stepping. What is in flight ends (`abort`), or stays where it is until `resume`; new requests wait."""
        await self._between_steps(lambda: self._pause(mode))

    async def resume(self) -> None:
        await self._between_steps(lambda: self._pause(None))

    async def flush(self) -> bool:
        """Forget cached prefixes. False while requests are in flight."""
        return await self._between_steps(self._engine.flush_cache)

    async def update_weights(self, path: Path, version: str | None, abort_all: bool) -> tuple[str, int]:
        """Load a policy's weights and swap them in between two steps; what runs goes on with the new ones.

        Returns:
            The new weight version, by default the next number, and how many requests were in flight.

        Raises:
            RufusError: the folder holds no policy, or one of another make. The old weights stay.
        """
        try:
            found = path.is_dir()
        except OSError:  # a name that is too long, a folder that is closed to this user
            found = False
        if not found:
            raise LineageError("no such directory", where=str(path), hint="name a directory of this machine")
        async with self._updating:
            policy = await asyncio.to_thread(load_policy, path)
            _check_same_make(self._policy, policy, path)

            def swap() -> tuple[str, int]:
                if abort_all:
                    self._abort_all()
                new = version or _next_version(self._engine.weight_version)
                self._engine.load_weights(policy.model, new)
                return new, len(self._in_flight)

            return await self._between_steps(swap)

    async def _between_steps(self, action: Callable[[], ValueT]) -> ValueT:
        """Run on the engine's thread, and bring back what it returns or raises."""
        future: asyncio.Future[ValueT] = self._loop.create_future()

        def settle(value: ValueT | None, error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(value)  # type: ignore[arg-type]

        def act() -> None:
            try:
                value = action()
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                self._call_loop(settle, None, error)
            else:
                self._call_loop(settle, value, None)

        with self._wake:
            if self._stopping:
                raise Refusal("the server is ending", status=503)
            self._actions.append(act)
            self._wake.notify()
        return await future

    def _post(self, action: Callable[[], None]) -> None:
        with self._wake:
            self._actions.append(action)
            self._wake.notify()

    # -- on the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._actions or self._stopping or self._may_step())
                actions = list(self._actions)
                self._actions.clear()
            for action in actions:
                action()
            if self._may_step():
                self._step()
            elif self._stopping and not self._actions:
                return

    def _may_step(self) -> bool:
        if not self._in_flight or self._failure is not None:
            return False
        # A pause holds what would sample on; what was aborted only waits to be told.
        return not self._paused or any(each._aborting for each in self._in_flight.values())

    def _step(self) -> None:
        try:
            news = self._engine.end_aborted() if self._paused else self._engine.step()
        except Exception as error:  # noqa: BLE001 - whatever broke the engine, nobody may wait for it for ever
            self._fail(error)
            return
        deliveries: list[tuple[Generation, Tokens]] = []
        for progress in news:
            generation = self._in_flight[progress.rid]
            generation._note(progress)
            if progress.result is not None:
                del self._in_flight[progress.rid]
                self._count(progress.result)
            if progress.result is not None or generation.every_token:
                deliveries.append((generation, Tokens(progress.token_ids, progress.logprobs, progress.result)))
        if deliveries:
            self._call_loop(_deliver, deliveries)

    def _count(self, result: GenerateResult) -> None:
        if result.finish_reason == "abort":
            self.counts.aborted += 1
        else:
            self.counts.finished += 1

    def _fail(self, error: Exception) -> None:
        self._failure = EngineError(f"the engine failed: {type(error).__name__}: {error}", hint="start the server anew")
        self._call_loop(_deliver, [(each, self._failure) for each in self._in_flight.values()])
        self.counts.aborted += len(self._in_flight)
        self._in_flight.clear()

    def _add(self, generations: Sequence[Generation]) -> None:
        if self._failure is not None:
            raise Refusal(str(self._failure), status=503)
        if len(generations) > self.most_in_flight:
            raise Refusal(f"{len(generations)} samples in one request: at most {self.most_in_flight}", param="n")
        if len(self._in_flight) + len(generations) > self.most_in_flight:
            raise Refusal("the request queue is full", status=503)
        rids = [each.request.rid for each in generations]
        for rid in rids:
            if rid in self._in_flight or rids.count(rid) > 1:
                raise Refusal(f"a request {rid!r} is in flight already", param="rid")
        for each in generations:
            self._engine.check(each.request)
        for each in generations:
            self._engine.add(each.request)
            self._in_flight[each.request.rid] = each
        self.counts.added += len(generations)

    def _abort(self, generations: Sequence[Generation]) -> None:
        for each in generations:
            if self._in_flight.get(each.request.rid) is each and not each._aborting:
                each._aborting = True
                self._engine.abort(each.request.rid)

    def _abort_all(self) -> None:
        self._abort(list(self._in_flight.values()))

    def _pause(self, mode: PauseMode | None) -> None:
        self._paused = mode is not None
        if mode == "abort":
            self._abort_all()

    def _call_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(function, *arguments)


def _deliver(deliveries: Sequence[tuple[Generation, Tokens | EngineError]]) -> None:
    for generation, news in deliveries:
        generation._news.put_nowait(news)


def _check_same_make(old: Policy, new: Policy, path: Path) -> None:
    """Raises EngineError where weights can't replace each other, or ids would mean something else."""
    if type(old.model) is not type(new.model):
        what = f"it is a {type(new.model).__name__}, and a {type(old.model).__name__} is served"
    elif {k: v.shape for k, v in old.model.state_dict().items()} != {
        k: v.shape for k, v in new.model.state_dict().items()
    }:
        what = "its weights have other names or shapes than those that are served"
    elif other := _other_settings(old, new):
        what = f"its configuration differs in {', '.join(other)} from the one that is served"
    elif old.chat.tokenizer.get_vocab() != new.chat.tokenizer.get_vocab():
        what = "its tokenizer has another vocabulary than the one that is served"
    else:
        return
    raise EngineError(what, where=str(path), hint="start a server of its own for it")


def _other_settings(old: Policy, new: Policy) -> list[str]:
    """What a model computes by beside its weights, such as the base of its positions, where it isn't the same."""
    olds, news = (policy.model.config.to_dict() for policy in (old, new))
    return sorted(key for key in {*olds, *news} - _WHERE_FROM if olds.get(key) != news.get(key))


def _next_version(version: str) -> str:
    return str(int(version) + 1) if version.isdecimal() else f"{version}+1"
