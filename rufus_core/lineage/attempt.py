"""Attempts: folders that a step writes into, aside from what is published."""

from __future__ import annotations

import json
import platform
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil

from rufus_core.lineage.files import entries, sync_tree
from rufus_core.lineage.names import check_fingerprint, check_name, name_of_slug, slug

_LABEL = re.compile(r"(?P<slug>[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)\.(?P<fingerprint>[0-9a-f]{64})\.[0-9a-f]{8}")
_CLOCK_SECONDS = 5.0  # a process's start time may shift this much when the clock is set


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at making an artifact.

    `folder` is where the step writes, `state` what it would go on from; `home` also holds who owns it.
    """

    name: str
    fingerprint: str
    home: Path

    @property
    def folder(self) -> Path:
        return self.home / "files"

    @property
    def state(self) -> Path:
        return self.home / "state"

    def alive(self) -> bool:
        """Whether its process may still run. A process of another host is taken to be alive."""
        try:
            owner = json.loads((self.home / "owner.json").read_bytes())
            host, pid, started = str(owner["host"]), int(owner["pid"]), float(owner["started"])
        except (OSError, ValueError, TypeError, KeyError):
            return False
        if host != platform.node():
            return True
        try:
            return bool(abs(psutil.Process(pid).create_time() - started) < _CLOCK_SECONDS)
        except psutil.NoSuchProcess:
            return False

    def discard(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


def new_attempt(folder: Path, name: str, fingerprint: str) -> Attempt:
    """A fresh attempt of this process. Raises OSError."""
    label = f"{slug(check_name(name))}.{check_fingerprint(fingerprint)}.{uuid.uuid4().hex[:8]}"
    process = psutil.Process()
    owner = {"host": platform.node(), "pid": process.pid, "started": process.create_time()}
    # Made under another name first, so that no attempt is ever seen without its owner.
    making = folder / f".{label}"
    (making / "files").mkdir(parents=True)
    (making / "state").mkdir()
    (making / "owner.json").write_text(json.dumps(owner), encoding="utf-8")
    sync_tree(making)
    return Attempt(name, fingerprint, making.rename(folder / label))


def attempts_in(folder: Path) -> list[Attempt]:
    """Every attempt there is, living or dead, in order of name."""
    attempts = []
    for home in entries(folder):
        label = _LABEL.fullmatch(home.name)
        if label:
            attempts.append(Attempt(name_of_slug(label["slug"]), label["fingerprint"], home))
    return attempts
