"""Streams to clients: server-sent events, clients that hang up, several generations in one stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rufus_core.rollout.server.completion import Snapshot
from rufus_core.rollout.server.refusal import Refusal
from rufus_core.types import Json

ValueT = TypeVar("ValueT")


class EventStream(StreamingResponse):
    """Server-sent events. `close` is called at the end, or as soon as the client is gone."""

    def __init__(self, events: AsyncGenerator[str], close: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._events, self._close = events, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._events):
                await super().__call__(scope, receive, send)
        finally:
            self._close()


def event(data: Json) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


DONE = "data: [DONE]\n\n"


async def unless_gone(request: Request, work: Awaitable[ValueT]) -> ValueT:
    """Wait for some work, or cancel it when the client hangs up. The request's body must have been read."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise Refusal("the client hung up", status=408)
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def merged(streams: Sequence[AsyncIterator[Snapshot]]) -> AsyncGenerator[tuple[int, Snapshot]]:
    """Snapshots of several generations as they come, each with the number of its stream."""
    queue: asyncio.Queue[tuple[int, Snapshot | Exception | None]] = asyncio.Queue(
        maxsize=1
    )  # no faster than they leave

    async def pump(i: int, stream: AsyncIterator[Snapshot]) -> None:
        try:
            async for snapshot in stream:
                await queue.put((i, snapshot))
            await queue.put((i, None))
        except Exception as error:  # noqa: BLE001 - raised again by whoever reads
            await queue.put((i, error))

    tasks = [asyncio.ensure_future(pump(i, stream)) for i, stream in enumerate(streams)]
    left = len(tasks)
    try:
        while left:
            i, news = await queue.get()
            if isinstance(news, Exception):
                raise news
            if news is None:
                left -= 1
            else:
                yield i, news
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
