"""General Agent environment: scenario worlds behind MCP servers (section 7).

One MCP server per world lives as long as the gym, on an event loop in a thread of its own. Each episode has its own
database; a call carries its episode's id in the request's `_meta`, by which the server finds that database. Success is
read off the final database by queries (GA-R1): no judge, no reward for steps or format (GA-R2).
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any, Self, TypeVar

import jsonschema
import mcp_types
from mcp import Client, MCPError
from mcp.server import Server

from rufus_core.data.worlds import WORLDS, Check, ToolFailure, World, read_world
from rufus_core.errors import DataError, InfrastructureError
from rufus_core.types import Episode, Json, Problem, ToolCall, ToolResult, ToolSchema, Verdict

_EPISODE = "rufus.air/episode"  # key in a request's _meta
_CHECK_INSTRUCTIONS = 1_000_000  # of SQLite's virtual machine, for one query of the success criteria

T = TypeVar("T")


class WorldServer:
    """An MCP server for one world. `episodes` maps an episode's id to its database."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.episodes: dict[str, sqlite3.Connection] = {}
        self._schemas = {schema.name: schema for schema in world.tool_schemas()}
        self._validators = {
            name: jsonschema.Draft202012Validator(schema.parameters) for name, schema in self._schemas.items()
        }
        self.server: Any = Server(world.name, on_list_tools=self._list_tools, on_call_tool=self._call_tool)

    async def _list_tools(self, _context: Any, _params: Any) -> Any:
        return mcp_types.ListToolsResult(
            tools=[
                mcp_types.Tool(name=schema.name, description=schema.description, input_schema=schema.parameters)
                for schema in self._schemas.values()
            ]
        )

    async def _call_tool(self, context: Any, params: Any) -> Any:
        database = self.episodes.get((context.meta or {}).get(_EPISODE, ""))
        if database is None:
            raise MCPError(code=mcp_types.INVALID_PARAMS, message="no such episode")
        try:
            text, failed = self._run(database, params.name, params.arguments or {}), False
        except ToolFailure as failure:
            text, failed = str(failure), True
        return mcp_types.CallToolResult(content=[mcp_types.TextContent(type="text", text=text)], is_error=failed)

    def _run(self, database: sqlite3.Connection, name: str, arguments: Mapping[str, Json]) -> str:
        validator = self._validators.get(name)
        if validator is None:
            raise ToolFailure("error: unknown tool")
        problem = next(validator.iter_errors(arguments), None)
        if problem is not None:
            raise ToolFailure(f"error: {problem.message[:200]}")
        return self.world.run(database, name, arguments)


class McpWorldGym:
    """Opens episodes of scenario worlds. Use as a context manager; safe to use from several threads.

    Args:
        worlds: the worlds to serve, by name.
        call_timeout_seconds: after this long a call's server counts as dead (InfrastructureError).
    """

    def __init__(self, worlds: Mapping[str, World] = WORLDS, call_timeout_seconds: float = 30.0) -> None:
        self._worlds = worlds
        self._servers = {name: WorldServer(world) for name, world in worlds.items()}
        self._call_timeout_seconds = call_timeout_seconds
        self._episode_ids = itertools.count()
        self._clients: dict[str, Any] = {}
        self._tools: dict[str, tuple[ToolSchema, ...]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), name="mcp-worlds", daemon=True)
        self._thread.start()
        ready.result()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._loop is not None and self._stop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._loop = self._stop = self._thread = None

    async def _serve(self, ready: Future[None]) -> None:
        """Connect a client to each server, then keep the connections until told to stop."""
        async with AsyncExitStack() as stack:
            try:
                for name, world_server in self._servers.items():
                    client = await stack.enter_async_context(Client(world_server.server))
                    listed = await client.list_tools()
                    self._clients[name] = client
                    self._tools[name] = tuple(
                        ToolSchema(name=tool.name, description=tool.description or "", parameters=tool.input_schema)
                        for tool in listed.tools
                    )
            except BaseException as error:  # handed to the thread that waits
                ready.set_exception(error)
                raise
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            ready.set_result(None)
            await self._stop.wait()

    def open(self, problem: Problem) -> McpWorldEnvironment:
        """A fresh database with the problem's rows. Raises DataError for a world or rows that don't exist or fit."""
        try:
            truth, database = read_world(problem.ground_truth, self._worlds)
        except DataError as error:
            error.where = f"problem {problem.id}"
            raise
        episode_id = str(next(self._episode_ids))
        self._servers[truth.world].episodes[episode_id] = database
        return McpWorldEnvironment(self, truth.world, episode_id, database, truth.checks)

    def call(self, world: str, episode_id: str, call: ToolCall) -> ToolResult:
        request = self._clients[world].call_tool(call.name, dict(call.arguments), meta={_EPISODE: episode_id})
        try:
            result = self._wait(request)
        except (MCPError, TimeoutError) as error:
            raise InfrastructureError(f"the MCP server of world {world!r} failed: {error or 'timeout'}") from error
        text = "\n".join(block.text for block in result.content if block.type == "text")
        return ToolResult(text, failed=bool(result.is_error))

    def _wait(self, request: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            request.close()
            raise InfrastructureError("the MCP servers are not running")
        future = asyncio.run_coroutine_threadsafe(request, self._loop)
        try:
            return future.result(self._call_timeout_seconds)
        finally:
            future.cancel()  # does nothing to a finished one

    def tools(self, world: str) -> Sequence[ToolSchema]:
        return self._tools[world]

    def close_episode(self, world: str, episode_id: str) -> None:
        self._servers[world].episodes.pop(episode_id, None)


class McpWorldEnvironment:
    """One episode in one world, with a database that no other episode sees."""

    def __init__(
        self,
        gym: McpWorldGym,
        world: str,
        episode_id: str,
        database: sqlite3.Connection,
        checks: Sequence[Check],
    ) -> None:
        self._gym, self._world, self._episode_id = gym, world, episode_id
        self._database, self._checks = database, checks

    @property
    def tools(self) -> Sequence[ToolSchema]:
        return self._gym.tools(self._world)

    def call(self, call: ToolCall) -> ToolResult:
        return self._gym.call(self._world, self._episode_id, call)

    def score(self, episode: Episode) -> Verdict:
        """1 iff the final state meets every check (GA-R1, GA-R2). How the interaction ended plays no part."""
        del episode
        try:
            missed = missed_checks(self._database, self._checks)
        except sqlite3.Error as error:
            return Verdict.unscorable(f"the success criteria can't be checked: {error}")
        return Verdict.binary(not missed, reason=f"missed: {missed[0]}" if missed else "")

    def cleanup(self) -> None:
        self._gym.close_episode(self._world, self._episode_id)
        self._database.close()


def missed_checks(database: sqlite3.Connection, checks: Sequence[Check]) -> list[str]:
    """The queries whose rows are not the expected ones. Raises sqlite3.Error for a query that fails or writes."""
    database.set_authorizer(_read_only)
    database.set_progress_handler(lambda: 1, _CHECK_INSTRUCTIONS)  # a query that runs longer is interrupted
    try:
        return [check.query for check in checks if [list(row) for row in database.execute(check.query)] != check.rows]
    finally:
        database.set_authorizer(None)
        database.set_progress_handler(None, 0)


def _read_only(action: int, *_: object) -> int:
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY
