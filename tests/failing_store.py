"""An HTTP proxy before an object store that fails a share of the requests, decided by how many came before."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

LINGER_NONE = struct.pack("ii", 1, 0)  # so that closing is a reset
HOP_BY_HOP = {"connection", "transfer-encoding", "expect", "keep-alive"}


class Fault(StrEnum):
    SLOW_DOWN = "503 SlowDown"
    INTERNAL_ERROR = "500 InternalError"
    RESET_BEFORE = "reset before the effect"
    RESET_AFTER = "reset after the effect"
    TRUNCATED = "half of the body"


class FailingStore:
    """A proxy on a port of 127.0.0.1. Of the requests that come, `rate` fail, each kind of fault in turn."""

    def __init__(self, upstream: str, rate: float = 0.05, seed: int = 7, kinds: tuple[Fault, ...] = tuple(Fault)):
        self.upstream = urlsplit(upstream)
        self.requests: list[tuple[str, str]] = []  # method and path with its query, as they came
        self.faults: Counter[Fault] = Counter()
        self._rate, self._kinds = rate, kinds
        self._ordered: tuple[str, str, Fault] | None = None
        self._random, self._lock = random.Random(seed), threading.Lock()
        store = self

        class Handler(_Handler):
            failing = store

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FailingStore:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fail_next(self, method: str, part_of_path: str, fault: Fault) -> None:
        """Fail the next request of this kind in this way."""
        self._ordered = (method, part_of_path, fault)

    def next_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append((method, path))
            chance = self._random.random() < self._rate
            if self._ordered and self._ordered[0] == method and self._ordered[1] in path:
                fault, self._ordered = self._ordered[2], None
            elif chance:
                fault = self._kinds[self.faults.total() % len(self._kinds)]
            else:
                return None
            self.faults[fault] += 1
            return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    failing: FailingStore

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # a client that gave up
            self.close_connection = True

    def _pass_on(self) -> None:
        fault = self.failing.next_fault(self.command, self.path)
        body = self._body()
        if fault is Fault.RESET_BEFORE:
            self._reset()
        elif fault is Fault.SLOW_DOWN:
            self._refuse(503, "SlowDown", "Please reduce your request rate.")
        elif fault is Fault.INTERNAL_ERROR:
            self._refuse(500, "InternalError", "We encountered an internal error. Please try again.")
        else:
            with self._asked(body) as answer:
                content = answer.read()
                if fault is Fault.RESET_AFTER or (fault is Fault.TRUNCATED and not content):
                    self._reset()
                else:
                    self._answer(answer.status, answer.getheaders(), content, cut=fault is Fault.TRUNCATED)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(pieces)

    @contextmanager
    def _asked(self, body: bytes) -> Iterator[http.client.HTTPResponse]:
        upstream = self.failing.upstream
        connection = http.client.HTTPConnection(upstream.hostname or "", upstream.port)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        headers["Content-Length"] = str(len(body))
        try:
            connection.request(self.command, self.path, body, headers)
            yield connection.getresponse()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP_BY_HOP | {"content-length"} or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True

    def _refuse(self, status: int, code: str, message: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        content = b"" if self.command == "HEAD" else text
        self._answer(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(content)))], content)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RD)
        self.connection.close()

    def log_message(self, *words: object) -> None:
        pass
