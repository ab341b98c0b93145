"""Requests over several servers: to the one with the least to do, to another one where a server dies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from rufus_core.errors import InfrastructureError
from rufus_core.ports.engine import GenerateRequest, GenerateResult
from rufus_core.rollout.sglang.client import ServerBusy, ServerSilent, SGLangServer, open_connections
from rufus_core.rollout.sglang.facts import PolicyFacts

_TRIES = 5  # of a request, at servers that live
_FIRST_WAIT_SECONDS = 1.0  # before a server that was busy is asked again; each later wait is twice as long
_EVEN = 1.25  # a server keeps a group while it has at most this much more to do than the least busy one


@dataclass(slots=True)
class _Member:
    server: SGLangServer
    tokens: int = 0  # of prompts and replies that it may still have to compute
    lost: str | None = None  # why it gets no more requests


@dataclass(slots=True)
class ServerPool:
    """Servers of one policy with equal weights. A server that is lost stays so.

    Requests of one group, whose names agree up to the first dot, prefer one server: it has their prompt in its cache.
    """

    servers: Sequence[SGLangServer]
    facts: PolicyFacts
    context_length: int
    request_seconds: float
    requests_at_once: int  # to one server
    _members: list[_Member] = field(init=False)
    _homes: dict[str, _Member] = field(init=False, default_factory=dict)
    _running: dict[str, tuple[str, _Member]] = field(init=False, default_factory=dict)  # by their names on servers

    def __post_init__(self) -> None:
        self._members = [_Member(server) for server in self.servers]

    @property
    def living(self) -> list[SGLangServer]:
        """Raises InfrastructureError where there is none."""
        if living := [member.server for member in self._members if member.lost is None]:
            return living
        reasons = "; ".join(f"{member.server.url}: {member.lost}" for member in self._members)
        raise InfrastructureError(f"no engine is left: {reasons}", hint="the job's log and the servers' say more")

    def lose(self, server: SGLangServer, reason: str) -> None:
        """Send it nothing any more."""
        for member in self._members:
            if member.server is server:
                member.lost = member.lost or reason
        self._homes = {group: member for group, member in self._homes.items() if member.lost is None}

    def forget_homes(self) -> None:
        """The servers' caches are empty."""
        self._homes.clear()

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """Results in the order of the requests.

        Raises:
            EngineError: a request was refused; the others are ended.
            InfrastructureError: every server is dead, or a request failed too often.
        """
        return asyncio.run(self._generate(requests))

    def abort(self, rid: str) -> None:
        """End the requests of this name, wherever they are. Any thread may call it."""
        for name, (own, member) in list(self._running.items()):
            if own == rid:
                member.server.abort(name)

    async def _generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        most = self.requests_at_once * len(self.servers)
        slots = asyncio.Semaphore(most)
        async with open_connections(self.request_seconds, most) as http:
            tasks = [asyncio.create_task(self._one(http, slots, request)) for request in requests]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, http: httpx.AsyncClient, slots: asyncio.Semaphore, request: GenerateRequest) -> GenerateResult:
        """Sending a request once more is safe: it changes nothing, and the connection that broke ended the first."""
        rid = f"{request.rid}.{secrets.token_hex(6)}"
        size = len(request.input_ids) + request.sampling_params.max_new_tokens
        async with slots:
            failures: list[str] = []
            while len(failures) < _TRIES:
                member = self._choose(request)
                member.tokens += size
                self._running[rid] = request.rid, member
                try:
                    return await member.server.generate(http, request, rid, self.facts, self.context_length)
                except ServerSilent as error:
                    failures.append(str(error))
                    if not await asyncio.to_thread(member.server.answers):
                        self.lose(member.server, str(error))
                        failures.pop()  # it was the server's fault, and there are only so many servers
                except ServerBusy as error:
                    failures.append(str(error))
                    await asyncio.sleep(_FIRST_WAIT_SECONDS * 2 ** (len(failures) - 1))
                finally:
                    del self._running[rid]
                    member.tokens -= size
        raise InfrastructureError(f"request {request.rid} failed {_TRIES} times, last: {failures[-1]}")

    def _choose(self, request: GenerateRequest) -> _Member:
        """Raises InfrastructureError where no server is left."""
        living = self.living
        least = min((m for m in self._members if m.server in living), key=lambda member: member.tokens)
        group = request.rid.partition(".")[0]
        home = self._homes.get(group)
        size = len(request.input_ids) + request.sampling_params.max_new_tokens
        if home is None or home.tokens > _EVEN * least.tokens + size:
            self._homes[group] = home = least
        return home
