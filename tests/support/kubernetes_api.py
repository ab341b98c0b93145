"""A server that speaks the part of Kubernetes' API that the launcher uses.

`python -m tests.support.kubernetes_api FOLDER PORT`. Jobs, RayJobs and pods: create, get, list, watch, delete, evict,
logs. All it knows is in FOLDER, so it can be killed and started again; its pods are processes that live on meanwhile.
Files in `FOLDER/knobs` make trouble.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

from tests.support.kubernetes_controllers import Controllers
from tests.support.kubernetes_objects import API, Object, State, condition, created, mark_deleted

TOKEN = "of-the-tests"
_PATH = re.compile(
    r"/(?:api/v1|apis/batch/v1|apis/ray\.io/v1)/namespaces/(?P<namespace>[a-z0-9-]+)"
    r"/(?P<kind>pods|jobs|rayjobs)(?:/(?P<name>[a-z0-9-]+))?(?:/(?P<part>log|eviction))?"
)


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, carry_out: Any) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refused(401, "Unauthorized", "Unauthorized")
            if self.state.knob("busy") is not None:
                raise Refused(503, "ServiceUnavailable", "the server is currently unable to handle the request")
            if (verb := self.state.knob("forbidden")) == self.command:
                raise Refused(403, "Forbidden", f'User "rufus" cannot {verb} resource')
            found = _PATH.fullmatch(url.path)
            if found is None:
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            carry_out(found.groupdict(), query, json.loads(body) if body else {})
        except Refused as refused:
            self._send(refused.status["code"], refused.status)

    def _get(self, place: dict[str, Any], query: dict[str, str], _body: Object) -> None:
        kind, name = place["kind"], place["name"]
        if name is None and query.get("watch") == "true":
            self._watch(kind, query)
        elif name is None:
            with self.state.changed:
                there = [one for one in self.state.objects[kind].values() if _is_in(one, place)]
                items = [shown(one) for one in there if selected(one, query)]
                version = str(self.state.version)
            api, singular = API[kind]
            meta = {"resourceVersion": version}
            self._send(200, {"apiVersion": api, "kind": f"{singular}List", "metadata": meta, "items": items})
        elif place["part"] == "log":
            log = self.state.folder / "pods" / self._existing(place)["metadata"]["uid"] / "log"
            self._send(200, log.read_text() if log.exists() else "")
        else:
            self._send(200, shown(self._existing(place)))

    def _post(self, place: dict[str, Any], _query: dict[str, str], body: Object) -> None:
        kind = place["kind"]
        if place["part"] == "eviction":
            with self.state.changed:
                pod = self._existing({**place, "kind": "pods"})
                condition(pod, "DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")
                mark_deleted(pod, pod["spec"]["terminationGracePeriodSeconds"])
                self.state.put("pods", pod)
            self._send(201, {"kind": "Status", "status": "Success"})
            return
        if kind == "jobs":
            try:
                kubernetes_validate.validate(body, kubernetes_validate.latest_version(), strict=True)
            except kubernetes_validate.ValidationError as error:
                raise Refused(422, "Invalid", str(error)) from error
        if self.state.knob("conflict") is not None:
            raise Refused(409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "jobs": it was modified')
        with self.state.changed:
            name = body["metadata"]["name"]
            if name in self.state.objects[kind]:
                raise Refused(409, "AlreadyExists", f'{kind} "{name}" already exists')
            thing = self.state.put(kind, created(kind, place["namespace"], body))
            with (self.state.folder / "created.txt").open("a") as file:
                file.write(name + "\n")
        if self.state.knob_once("cut-create"):  # carried out, and the answer is lost
            self.connection.close()
            os._exit(1)
        self._send(201, shown(thing))

    def _delete(self, place: dict[str, Any], query: dict[str, str], body: Object) -> None:
        with self.state.changed:
            thing = self._existing(place)
            policy = query.get("propagationPolicy") or body.get("propagationPolicy")
            if place["kind"] != "pods" and policy != "Foreground":
                raise Refused(400, "BadRequest", "this server deletes in the foreground alone")
            asked = query.get("gracePeriodSeconds", body.get("gracePeriodSeconds"))
            own = thing["spec"].get("terminationGracePeriodSeconds", 0)
            mark_deleted(thing, own if asked is None else int(asked))
            self.state.put(place["kind"], thing)
        self._send(200, shown(thing))

    def _watch(self, kind: str, query: dict[str, str]) -> None:
        since, until = int(query["resourceVersion"]), time.monotonic() + int(query.get("timeoutSeconds", 60))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while (left := until - time.monotonic()) > 0:
                with self.state.changed:
                    if since < self.state.oldest:
                        gone = Refused(410, "Expired", f"too old resource version: {since} ({self.state.oldest})")
                        return self._chunks([{"type": "ERROR", "object": gone.status}])
                    news = [event for event in self.state.events if event[0] > since and event[1] == kind]
                    since = self.state.version
                    if not news:
                        self.state.changed.wait(min(left, 1.0))
                self._chunks([{"type": e[2], "object": shown(e[3])} for e in news if selected(e[3], query)], last=False)
            self._chunks([])
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _chunks(self, events: list[Object], last: bool = True) -> None:
        for event in events:
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        if last:
            self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _existing(self, place: dict[str, Any]) -> Object:
        kind, name = place["kind"], place["name"]
        found = self.state.objects[kind].get(name)
        if found is None or not _is_in(found, place):
            raise Refused(404, "NotFound", f'{kind} "{name}" not found')
        return found

    def _send(self, code: int, body: Object | str) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def shown(thing: Object) -> Object:
    """Without what only the controllers need."""
    return {key: thing[key] for key in ("apiVersion", "kind", "metadata", "spec", "status")}


def _is_in(thing: Object, place: dict[str, Any]) -> bool:
    return bool(thing["metadata"]["namespace"] == place["namespace"])


def selected(thing: Object, query: dict[str, str]) -> bool:
    wanted = [part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part]
    labels = thing["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in wanted)


def end_with_owner() -> None:
    """Whoever started this holds the other end of standard input."""
    sys.stdin.buffer.read()
    os._exit(0)


def main(folder: Path, port: int) -> None:
    Handler.state = State(folder)
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=Controllers(Handler.state).run, daemon=True).start()
    threading.Thread(target=end_with_owner, daemon=True).start()
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
