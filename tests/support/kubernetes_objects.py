"""What the API server of the tests holds: objects by kind and name, on disk, with the changes that watches tell."""

from __future__ import annotations

import json
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.kubernetes_pod import write_whole

Object = dict[str, Any]

API = {"jobs": ("batch/v1", "Job"), "rayjobs": ("ray.io/v1", "RayJob"), "pods": ("v1", "Pod")}


class State:
    """Objects by kind and name. Every change has a number, is on disk before it is seen, and wakes who watches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changed = threading.Condition(threading.RLock())
        self._file = folder / "state.json"
        told = json.loads(self._file.read_text()) if self._file.exists() else {"version": 100, "objects": {}}
        self.version: int = told["version"]
        self.objects: dict[str, dict[str, Object]] = {kind: told["objects"].get(kind, {}) for kind in API}
        self.oldest = self.version  # changes up to here are no longer known: also after a restart
        self.events: list[tuple[int, str, str, Object]] = []  # version, kind, type, object as it was then

    def put(self, kind: str, thing: Object) -> Object:
        """Add or replace; the object with its new version."""
        with self.changed:
            new = thing["metadata"]["name"] not in self.objects[kind]
            self._number(thing)
            self.objects[kind][thing["metadata"]["name"]] = thing
            self._happened(kind, "ADDED" if new else "MODIFIED", thing)
            return thing

    def remove(self, kind: str, name: str) -> None:
        with self.changed:
            thing = self.objects[kind].pop(name)
            self._number(thing)
            self._happened(kind, "DELETED", thing)

    def forget_events(self) -> None:
        """As etcd compacts its history."""
        with self.changed:
            self.oldest = self.version
            self.events.clear()
            self.changed.notify_all()

    def knob(self, name: str) -> str | None:
        """What the test says; None if nothing."""
        try:
            return (self.folder / "knobs" / name).read_text()
        except FileNotFoundError:
            return None

    def knob_once(self, name: str) -> bool:
        try:
            (self.folder / "knobs" / name).unlink()
        except FileNotFoundError:
            return False
        return True

    def _number(self, thing: Object) -> None:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)

    def _happened(self, kind: str, what: str, thing: Object) -> None:
        write_whole(self._file, json.dumps({"version": self.version, "objects": self.objects}))
        self.events.append((self.version, kind, what, json.loads(json.dumps(thing))))
        self.changed.notify_all()


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def created(kind: str, namespace: str, manifest: Object) -> Object:
    """An object as the server first holds it."""
    version, name = API[kind]
    meta = {**manifest["metadata"], "namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
    return {**manifest, "apiVersion": version, "kind": name, "metadata": meta, "status": {}}


def mark_deleted(thing: Object, grace: int) -> None:
    """From here on it is to end; a shorter grace than before counts."""
    by = time.time() + grace
    meta = thing["metadata"]
    meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = now(), grace
    thing["kill_at"] = min(by, thing.get("kill_at", by))


def condition(thing: Object, kind: str, status: str, reason: str, message: str) -> None:
    conditions = thing["status"].setdefault("conditions", [])
    conditions[:] = [one for one in conditions if one["type"] != kind]
    conditions.append({"type": kind, "status": status, "reason": reason, "message": message})
