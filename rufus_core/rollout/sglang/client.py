"""One server: what is asked of it, and what its refusals mean."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import httpx

from rufus_core.errors import ConfigError, EngineError, InfrastructureError
from rufus_core.ports.engine import GenerateRequest, GenerateResult
from rufus_core.rollout.sglang.facts import PolicyFacts
from rufus_core.rollout.sglang.wire import request_body, result_of
from rufus_core.types import Json

_CONNECT_SECONDS = 10.0
_CONTROL_SECONDS = 60.0
_MOST_CHARACTERS = 500  # of what a server says, in an error
# A machine that lost its power closes no connection: after two minutes without a sign of it the kernel does.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class ServerBusy(Exception):
    """It answered, and can't serve this now: full, paused, or failing inside."""


class ServerSilent(Exception):
    """The connection broke, or nothing came. Whether the server lives isn't known."""


def open_connections(seconds: float, most: int) -> httpx.AsyncClient:
    """For requests to any server. A reply may take `seconds`."""
    transport = httpx.AsyncHTTPTransport(
        limits=httpx.Limits(max_connections=most, max_keepalive_connections=most), socket_options=_KEEPALIVE
    )
    timeout = httpx.Timeout(seconds, connect=_CONNECT_SECONDS, pool=None)
    return httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False)


class SGLangServer:
    """Speaks to `url`. Raises ConfigError where it isn't an engine, InfrastructureError where it can't be reached."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    async def generate(
        self, http: httpx.AsyncClient, request: GenerateRequest, rid: str, facts: PolicyFacts, context_length: int
    ) -> GenerateResult:
        """Raises EngineError for a request that it refuses, ServerBusy, ServerSilent; nothing is left running."""
        body = request_body(request, rid, context_length)
        try:
            response = await http.post(f"{self.url}/generate", json=body)
        except httpx.TransportError as error:
            raise ServerSilent(f"{self.url}: {str(error) or type(error).__name__}") from error
        if response.status_code == 200:
            return result_of(_json(response), request, facts)
        what = f"{self.url}: {said(response)}"
        if response.status_code in (400, 413, 422):
            raise EngineError(said(response), where=f"request {request.rid}")
        if response.status_code in (401, 403, 404, 405):
            raise ConfigError("this is no engine that can be used", where=what, hint="check execution.sglang.urls")
        raise ServerBusy(what)

    def abort(self, rid: str) -> None:
        """End the request of this name, if there is one; it gives what it has."""
        self.control("/abort_request", {"rid": rid})

    def abort_all(self) -> None:
        self.control("/abort_request", {"abort_all": True})

    def pause(self, mode: str) -> None:
        """`abort` ends what runs; `in_place` and `retract` keep it, with or without its keys and values."""
        self.control("/pause_generation", {"mode": mode})

    def resume(self) -> None:
        self.control("/continue_generation", {})

    def flush_cache(self) -> bool:
        """Forget all kept prefixes; False while requests run."""
        try:
            return httpx.post(f"{self.url}/flush_cache", timeout=_CONTROL_SECONDS, trust_env=False).status_code == 200
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def weight_version(self, seconds: float = _CONTROL_SECONDS) -> str:
        return str(self.info(seconds)["weight_version"])

    def info(self, seconds: float = _CONTROL_SECONDS) -> dict[str, Json]:
        try:
            response = httpx.get(f"{self.url}/model_info", timeout=seconds, trust_env=False)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if response.status_code != 200:
            raise InfrastructureError(f"the server doesn't say what it serves: {said(response)}", where=self.url)
        info = _json(response)
        if not isinstance(info, dict) or "weight_version" not in info:
            raise ConfigError("this is no engine of SGLang's", where=self.url, hint="check execution.sglang.urls")
        return info

    def answers(self) -> bool:
        try:
            self.info(_CONNECT_SECONDS)
        except InfrastructureError:
            return False
        return True

    def control(self, path: str, body: Mapping[str, Any], seconds: float = _CONTROL_SECONDS) -> Json:
        """What it replies. Raises InfrastructureError where it doesn't do it, and says why."""
        try:
            response = httpx.post(f"{self.url}{path}", json=dict(body), timeout=seconds, trust_env=False)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        reply = _json(response) if response.content else None
        if response.status_code != 200 or (isinstance(reply, dict) and reply.get("success") is False):
            raise InfrastructureError(f"{path} failed: {said(response)}", where=self.url)
        return reply

    def _unreachable(self, error: Exception) -> InfrastructureError:
        return InfrastructureError(f"can't reach the server: {str(error) or type(error).__name__}", where=self.url)


def said(response: httpx.Response) -> str:
    """The message of a refusal, in the shapes that SGLang and the embedded engine's server use."""
    try:
        body = response.json()
    except ValueError:
        body = response.text
    if isinstance(body, dict):
        error = body.get("error", body)
        body = error.get("message", error) if isinstance(error, dict) else error
    return str(body)[:_MOST_CHARACTERS] or f"status {response.status_code}"


def _json(response: httpx.Response) -> Json:
    try:
        return response.json()
    except ValueError:
        return None
