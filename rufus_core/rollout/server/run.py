"""Serving a policy until it is told to stop."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn
from transformers.utils import logging as transformers_logging

from rufus_core.errors import ConfigError, PortInUse
from rufus_core.rollout.engine import EmbeddedEngine
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.rollout.server.app import make_app
from rufus_core.rollout.server.loopback import is_loopback
from rufus_core.rollout.server.served import Served
from rufus_core.rollout.server.service import EngineService

_BACKLOG = 2048
_GRACE_SECONDS = 10  # for answers on their way when the server is told to stop


@dataclass(frozen=True, slots=True)
class ServerOptions:
    host: str = "127.0.0.1"
    port: int = 30000
    max_batch: int = 64
    most_in_flight: int = 1024
    context: int | None = None  # in tokens; None: the model's own
    num_threads: int | None = None
    api_key: str | None = None


def make_service(policy: Policy, max_batch: int, most_in_flight: int, context: int | None = None) -> EngineService:
    """Raises EngineError where the cache can't hold one sequence of the context's length."""
    engine = EmbeddedEngine(policy.model, max_batch, context)
    return EngineService(engine, policy, most_in_flight)


def serve(folder: Path, name: str, options: ServerOptions, ready: Callable[[str], None]) -> None:
    """Serve a policy until SIGINT or SIGTERM. `ready` is called with the address once it is bound.

    Raises:
        PortInUse: something else has the port.
        LineageError, TemplateError: the folder holds no policy.
        KeyboardInterrupt: it was told to stop, and has ended in order.
    """
    with bind(options.host, options.port) as listener:
        if options.num_threads:
            torch.set_num_threads(options.num_threads)
        transformers_logging.set_verbosity_error()  # what clients send is told to them, not to whoever serves
        policy = load_policy(folder)
        service = make_service(policy, options.max_batch, options.most_in_flight, options.context)
        app = make_app(Served(service, policy, name, str(folder)), options.api_key, is_loopback(options.host))
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE_SECONDS)
        host, port = listener.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        _Server(config, service).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Aborts what is in flight when it is told to stop, so that its clients get what there is."""

    def __init__(self, config: uvicorn.Config, service: EngineService) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.end_all()
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises PortInUse, ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"there is no host {host!r}: {error.strerror}", hint="leave out --host") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        hint = "choose another one with --port"
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"port {port} is taken by another program", hint=hint) from error
        raise ConfigError(f"can't serve on {host} port {port}: {error.strerror}", hint=hint) from error
    return listener
