"""A real HTTP server on loopback that answers by a function of the request's body."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Reply:
    status: int = 200
    payload: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


def said(content: str | None, **message: Any) -> Reply:
    """A chat completion as OpenAI, SGLang and the embedded engine tell it."""
    finish_reason = message.pop("finish_reason", "stop")
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish_reason}
    return Reply(payload={"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})


def failed(status: int, **headers: str) -> Reply:
    """An error as SGLang words it, which differs from OpenAI's."""
    payload = {"object": "error", "message": "no", "type": "Error", "param": None, "code": status}
    return Reply(status, payload, {name.replace("_", "-"): value for name, value in headers.items()})


class Endpoint:
    """Entering starts it. `requests` holds path, authorization and body of each, `at_once` how many it met together."""

    def __init__(self, answer: Callable[[dict[str, Any]], Reply]) -> None:
        self.requests: list[tuple[str, str | None, dict[str, Any]]] = []
        self.at_once = 0
        under_way, lock, endpoint = set[object](), threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    under_way.add(self)
                    endpoint.at_once = max(endpoint.at_once, len(under_way))
                    endpoint.requests.append((self.path, self.headers["Authorization"], body))
                reply = answer(body)
                with lock:
                    under_way.discard(self)
                content = reply.payload if isinstance(reply.payload, bytes) else json.dumps(reply.payload).encode()
                self.send_response(reply.status)
                for name, value in {**reply.headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True  # a client keeps its connections open
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.root = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{self.root}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def in_turn(replies: Sequence[Reply]) -> Callable[[dict[str, Any]], Reply]:
    """One after the other, the last one for ever."""
    left = list(replies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]
