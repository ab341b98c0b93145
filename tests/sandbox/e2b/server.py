"""The test server: `python -m tests.sandbox.e2b.server FOLDER` prints its port and serves until its input ends.

The control plane (`/v2/sandboxes`, `/sandboxes`, `/templates`) wants an API key; envd (`/process.Process`, `/files`,
`/health`) finds its machine by the header `E2b-Sandbox-Id`, behind one address, as E2B's gateway does, and wants the
machine's access token. `/test` is for tests: faults to come, and what was done.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.process import process_pb
from e2b.envd.process.process_connect import Process, ProcessASGIApplication
from protobuf import Oneof
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.sandbox.e2b.faults import Fault, Faults, broken
from tests.sandbox.e2b.machines import PATHS, Machine

API_KEY = "e2b_0123456789abcdef"
ENVD_VERSION = "0.6.4"


class Held:
    """A machine and what its control plane knows of it."""

    def __init__(self, machine: Machine, template: str, metadata: dict[str, str], timeout: float) -> None:
        self.machine, self.template, self.metadata = machine, template, metadata
        self.token, self.started = secrets.token_hex(8), time.time()
        self.ends = self.started + timeout


class World:
    """All machines, and what clients did."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.faults = folder, Faults()
        self.held: dict[str, Held] = {}
        self.by_key: dict[str, str] = {}
        self.requests: list[str] = []
        self.commands: list[str] = []
        self.environments: list[dict[str, str]] = []

    def create(self, body: dict[str, Any], key: str | None) -> str:
        if key is not None and key in self.by_key:
            return self.by_key[key]
        name = f"i{secrets.token_hex(6)}"
        folder = self.folder / name
        folder.mkdir()
        template = body["templateID"]
        machine = Machine(folder, template)
        self.held[name] = Held(machine, template, body.get("metadata", {}), body.get("timeout", 15))
        self.environments.append(body.get("envVars", {}))
        if key is not None:
            self.by_key[key] = name
        return name

    def kill(self, name: str) -> bool:
        held = self.held.pop(name, None)
        if held is not None:
            held.machine.kill()
        return held is not None

    def of(self, headers: Any) -> Held | None:
        held = self.held.get(headers.get("e2b-sandbox-id", ""))
        return held if held is not None and held.token == headers.get("x-access-token") else None


class Envd(Process):
    """envd's service of processes."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def start(self, request: process_pb.StartRequest, ctx: Any, /) -> AsyncIterator[process_pb.StartResponse]:
        held = self.world.of(ctx.request_headers)
        if held is None or request.process is None:
            raise ConnectError(Code.UNAVAILABLE, "the sandbox was not found")
        user = base64.b64decode(ctx.request_headers["authorization"].split()[1]).decode().rstrip(":")
        config = request.process
        self.world.commands.append(config.args[-1])
        process = await held.machine.start(user, [config.cmd, *config.args], config.cwd)
        assert process.stdin is not None
        process.stdin.close()
        try:
            yield _event("start", process_pb.ProcessEvent.StartEvent(pid=process.pid))
            chunks: asyncio.Queue[tuple[Any, bytes]] = asyncio.Queue()
            readers = [
                asyncio.create_task(_read(stream, name, chunks))
                for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
            ]
            for _ in range(2):
                while True:
                    name, data = await chunks.get()
                    if not data:
                        break
                    yield _event("data", process_pb.ProcessEvent.DataEvent(output=Oneof(name, data)))
            await asyncio.gather(*readers)
            code = await process.wait()
            yield _event("end", process_pb.ProcessEvent.EndEvent(exit_code=code, exited=True, status=f"exit {code}"))
        finally:
            if process.returncode is None:
                process.kill()


def _event(field: Any, value: Any) -> process_pb.StartResponse:
    return process_pb.StartResponse(event=process_pb.ProcessEvent(event=Oneof(field, value)))


async def _read(stream: Any, name: str, chunks: asyncio.Queue[tuple[Any, bytes]]) -> None:
    while data := await stream.read(1 << 16):
        await chunks.put((name, data))
    await chunks.put((name, b""))


def control(world: World) -> Starlette:
    """The HTTP half: the control plane, files, health, and what tests ask for."""

    async def create(request: Request) -> Response:
        body = await request.json()
        if body["templateID"] not in PATHS:
            return _error(404, f"template '{body['templateID']}' not found")
        name = await asyncio.to_thread(world.create, body, request.headers.get("idempotency-key"))
        held = world.held[name]
        told = {"templateID": held.template, "sandboxID": name, "clientID": "c", "envdVersion": ENVD_VERSION}
        return JSONResponse({**told, "envdAccessToken": held.token, "domain": None}, status_code=201)

    async def listed(request: Request) -> Response:
        query = urllib.parse.parse_qs(request.query_params.get("metadata", ""))
        wanted = {urllib.parse.unquote(k): urllib.parse.unquote(v[0]) for k, v in query.items()}
        found = [
            {
                **{"templateID": held.template, "sandboxID": name, "clientID": "c", "envdVersion": ENVD_VERSION},
                **{"startedAt": _when(held.started), "endAt": _when(held.ends), "state": "running"},
                **{"cpuCount": 1, "memoryMB": 512, "diskSizeMB": 512, "metadata": held.metadata},
            }
            for name, held in world.held.items()
            if wanted.items() <= held.metadata.items()
        ]
        return JSONResponse(found)

    async def kill(request: Request) -> Response:
        name = request.path_params["name"]
        return Response(status_code=204) if world.kill(name) else _error(404, f"sandbox {name} not found")

    async def timeout(request: Request) -> Response:
        held = world.held.get(request.path_params["name"])
        if held is None:
            return _error(404, "sandbox not found")
        held.ends = time.time() + (await request.json())["timeout"]
        return Response(status_code=204)

    async def alias(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in PATHS:
            return _error(404, "template not found")
        return JSONResponse({"templateID": name, "public": False})

    async def files(request: Request) -> Response:
        held = world.of(request.headers)
        if held is None:
            return _error(502, "The sandbox was not found")
        path, user = request.query_params["path"], request.query_params["username"]
        if request.method == "GET":
            process = await held.machine.start(user, ["cat", "--", path])
            data, _ = await process.communicate()
            return Response(data) if process.returncode == 0 else _error(404, f"{path} not found")
        script = 'mkdir -p -- "${0%/*}" && cat > "$0"'
        process = await held.machine.start(user, ["sh", "-c", script, path])
        _, told = await process.communicate(await request.body())
        if process.returncode != 0:
            return _error(500, told.decode())
        return JSONResponse([{"name": path.rpartition("/")[2], "type": "file", "path": path}])

    async def health(request: Request) -> Response:
        return Response(status_code=204) if world.of(request.headers) else _error(502, "The sandbox was not found")

    async def faults(request: Request) -> Response:
        world.faults.pending = [Fault.model_validate(fault) for fault in await request.json()]
        return Response(status_code=204)

    async def log(request: Request) -> Response:
        metadata = {name: held.metadata for name, held in world.held.items()}
        ends = {name: held.ends - time.time() for name, held in world.held.items()}
        told = {"requests": world.requests, "commands": world.commands, "machines": metadata, "seconds_left": ends}
        return JSONResponse({**told, "environments": world.environments})

    return Starlette(
        routes=[
            Route("/v2/sandboxes", create, methods=["POST"]),
            Route("/v2/sandboxes", listed),
            Route("/sandboxes/{name}", kill, methods=["DELETE"]),
            Route("/sandboxes/{name}/timeout", timeout, methods=["POST"]),
            Route("/templates/aliases/{name}", alias),
            Route("/files", files, methods=["GET", "POST"]),
            Route("/health", health),
            Route("/test/faults", faults, methods=["PUT"]),
            Route("/test/log", log),
        ]
    )


def application(world: World) -> Any:
    """Everything behind one address, with the faults in front."""
    http, envd = control(world), ProcessASGIApplication(Envd(world))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await http(scope, receive, send)
            return
        request = Request(scope)
        path, line = request.url.path, f"{request.method} {request.url.path}"
        if not path.startswith("/test"):
            world.requests.append(line)
            fault = world.faults.take(line)
            if fault is not None and fault.kind == "status":
                await _error(fault.status, "on demand")(scope, receive, send)
                return
            if fault is not None and fault.kind == "slow":
                await asyncio.sleep(fault.seconds)
            if fault is not None and fault.kind == "kill":
                world.kill(request.headers["e2b-sandbox-id"])
            if fault is not None and fault.kind == "reset":
                send = broken(send)
            if path.startswith(("/v2/sandboxes", "/sandboxes", "/templates")):
                given = request.headers.get("x-api-key")
                if given != API_KEY:
                    await _error(401 if given else 403, "no such key")(scope, receive, send)
                    return
        await (envd if path.startswith("/process.Process/") else http)(scope, receive, send)

    return app


def _error(status: int, message: str) -> Response:
    return JSONResponse({"code": status, "message": message}, status_code=status)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def main() -> None:
    world = World(Path(sys.argv[1]))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(world), log_level="critical", lifespan="off"))
    print(listener.getsockname()[1], flush=True)

    def stop_with_input() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=stop_with_input, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    for name in list(world.held):
        world.kill(name)
    os._exit(0)  # requests that wait for ended machines


if __name__ == "__main__":
    main()
