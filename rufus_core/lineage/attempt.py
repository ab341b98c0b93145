"""Attempts: folders that a step writes into, aside from what is published."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rufus_core.lineage.files import entries, sync_tree, write_whole
from rufus_core.lineage.names import check_fingerprint, check_name, name_of_slug, slug
from rufus_core.lineage.process import ProcessId

_LABEL = re.compile(
    r"(?P<hidden>\.?)(?P<slug>[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)\.(?P<fingerprint>[0-9a-f]{64})\.[0-9a-f]{8}"
)
_OWNER_FILE = "owner.json"


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

    def owner(self) -> ProcessId | None:
        """Whose it is; None where that can't be read."""
        try:
            return ProcessId(**json.loads((self.home / _OWNER_FILE).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def alive(self) -> bool:
        """Whether its process may still run. A process of another host is taken to be alive."""
        owner = self.owner()
        return owner is not None and not owner.gone()

    def has_state(self) -> bool:
        """Whether there is something to go on from. What was published has no `folder` any more."""
        return bool(entries(self.state)) and self.folder.is_dir()

    def age_key(self) -> int:
        """Greater for one that was begun or taken over later."""
        try:
            return (self.home / _OWNER_FILE).stat().st_mtime_ns
        except OSError:
            return 0

    def take_over(self) -> None:
        """Make it this process's own. The lease says that nobody else does the same. Raises OSError."""
        write_whole(self.home / _OWNER_FILE, json.dumps(asdict(ProcessId.mine())))

    def discard(self) -> None:
        """Remove it: out of sight first, so that a crash in between leaves nothing half to go on from."""
        hidden = self.home.with_name(f".{self.home.name}")
        with suppress(OSError):
            self.home.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def new_attempt(folder: Path, name: str, fingerprint: str, copied: Attempt | None = None) -> Attempt:
    """A fresh attempt of this process, with the files and the state of `copied`. Raises OSError."""
    label = f"{slug(check_name(name))}.{check_fingerprint(fingerprint)}.{uuid.uuid4().hex[:8]}"
    # Made under another name first, so that no attempt is ever seen without its owner.
    making = Attempt(name, fingerprint, folder / f".{label}")
    making.home.mkdir(parents=True)
    for part in ("files", "state"):
        if copied is None:
            (making.home / part).mkdir()
        else:
            shutil.copytree(copied.home / part, making.home / part)
    making.take_over()
    sync_tree(making.home)
    return Attempt(name, fingerprint, making.home.rename(folder / label))


def attempts_in(folder: Path, hidden: bool = False) -> list[Attempt]:
    """Every attempt there is, living or dead, in order of name; or those that were being made or discarded."""
    attempts = []
    for home in entries(folder):
        label = _LABEL.fullmatch(home.name)
        if label and bool(label["hidden"]) is hidden:
            attempts.append(Attempt(name_of_slug(label["slug"]), label["fingerprint"], home))
    return attempts
