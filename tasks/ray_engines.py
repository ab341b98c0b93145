"""Rollout engines as Ray actors: each starts a server where its place is, and tells its address."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from rufus_core.errors import InfrastructureError
from rufus_core.ports.ranks import EngineServer
from tasks.ray_places import actor_class, killed, loss_told, place_in

POLL_SECONDS = 0.2
ANSWER_SECONDS = 5.0


@contextmanager
def running_engines(
    engines: Sequence[EngineServer], group: Any, bundles: Sequence[int], devices: Sequence[str | None]
) -> Iterator[tuple[str, ...]]:
    """Addresses of engines, each at a bundle of the group, all of them ready. They are dead on leaving.

    `devices` are the GPUs that each sees, as CUDA lists them; None: those that Ray gives it.

    Raises InfrastructureError where one doesn't start.
    """
    actors = [
        actor_class(_Engine, engine.resources, scheduling_strategy=place_in(group, bundle)).remote()
        for engine, bundle in zip(engines, bundles, strict=True)
    ]
    with killed(actors):
        calls = [actor.start.remote(*each) for actor, *each in zip(actors, engines, devices, strict=True)]
        yield tuple(_address(call) for call in calls)


def _address(call: Any) -> str:
    import ray

    with loss_told(lambda why: InfrastructureError(f"an engine's process died: {why}")):
        told = ray.get(call)
    if isinstance(told, InfrastructureError):
        raise told
    return str(told)


class _Engine:
    """Owns one server, which can't outlive it."""

    def __init__(self) -> None:
        self._keeper: subprocess.Popen[bytes] | None = None

    def start(self, engine: EngineServer, devices: str | None) -> str | InfrastructureError:
        """Its address once it is ready, or why it isn't: Ray would wrap what is raised."""
        import ray

        host = ray.util.get_node_ip_address()
        with socket.create_server((host, 0)) as probe:
            port = probe.getsockname()[1]
        command = [part.replace("{host}", host).replace("{port}", str(port)) for part in engine.command]
        self._keeper = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "rufus_core.rollout.sglang.keeper", *command],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env=os.environ if devices is None else {**os.environ, "CUDA_VISIBLE_DEVICES": devices},
        )
        url = f"http://{host}:{port}"
        deadline = time.monotonic() + engine.start_seconds
        while time.monotonic() < deadline:
            if (code := self._keeper.poll()) is not None:
                return InfrastructureError(f"the engine ended with {code}: {command[0]}", hint="its output is Ray's")
            if _healthy(url + engine.health):
                return url
            time.sleep(POLL_SECONDS)
        return InfrastructureError(f"the engine isn't ready after {engine.start_seconds:.0f} s", where=url)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=ANSWER_SECONDS).is_success
    except httpx.TransportError:
        return False
