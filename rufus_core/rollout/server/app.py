"""The routes, and what stands before them: the key, the host's name, errors of one shape."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rufus_core.errors import EngineError, TemplateError
from rufus_core.rollout.server.loopback import is_loopback
from rufus_core.rollout.server.native import Native
from rufus_core.rollout.server.openai import OpenAI
from rufus_core.rollout.server.refusal import Refusal, error_response
from rufus_core.rollout.server.served import Served

_OPEN_PATHS = ("/health", "/health_generate")  # as in SGLang, they need no key


def make_app(served: Served, api_key: str | None = None, only_local: bool = True) -> Starlette:
    """The application. Its engine's thread runs from startup to shutdown.

    `only_local`: requests must be addressed to this machine by one of its own names.
    """
    native, openai = Native(served), OpenAI(served)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await served.service.start()
        yield
        await served.service.stop()

    routes = [
        Route("/generate", native.generate, methods=["POST", "PUT"]),
        Route("/abort_request", native.abort_request, methods=["POST"]),
        Route("/pause_generation", native.pause_generation, methods=["POST"]),
        Route("/continue_generation", native.continue_generation, methods=["POST"]),
        Route("/flush_cache", native.flush_cache, methods=["GET", "POST"]),
        Route("/update_weights_from_disk", native.update_weights_from_disk, methods=["POST"]),
        Route("/model_info", native.model_info),
        Route("/get_model_info", native.model_info),
        Route("/server_info", native.server_info),
        Route("/get_server_info", native.server_info),
        Route("/health", native.health),
        Route("/health_generate", native.health_generate),
        Route("/v1/models", openai.models),
        Route("/v1/models/{model:path}", openai.model),
        Route("/v1/chat/completions", openai.chat_completions, methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            *([Middleware(_Local)] if only_local else []),
            *([Middleware(_Key, api_key=api_key)] if api_key else []),
        ],
        exception_handlers={
            HTTPException: _http_error,
            EngineError: _engine_error,
            TemplateError: _engine_error,
            RecursionError: _too_deep,
            Exception: _own_error,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # an unknown path is one
    return app


class _Local:
    """Refuses other hosts' names: a page in a browser whose name was bent to this machine sends its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = dict(scope["headers"]).get(b"host", b"localhost").decode("latin-1")
            if not is_loopback(_without_port(host.lower())):
                what = f"this server is for its own machine, and not reached as {host!r}"
                await error_response(421, what, "host")(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _without_port(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


class _Key:
    """Asks for `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app, self._expected = app, f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                await error_response(401, "send the header Authorization: Bearer KEY")(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: f"there is no {request.url.path} here", 405: f"{request.url.path} doesn't take {request.method}"}
    return error_response(error.status_code, what.get(error.status_code, error.detail), None, error.headers)


async def _engine_error(_request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return error_response(error.status, str(error), error.param)
    return error_response(400, str(error))


async def _too_deep(_request: Request, _error: Exception) -> Response:
    """JSON that could be read may still be too deep for what checks it, or for the chat template."""
    return error_response(400, "the body is nested too deeply", "body")


async def _own_error(_request: Request, error: Exception) -> Response:
    return error_response(500, f"this is a fault of the server: {type(error).__name__}")
