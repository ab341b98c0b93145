"""Leases at a shared root: of all jobs that use it, at most one makes the artifact of a name and fingerprint.

`leases/<name>.<fp>/<token>.json` says who holds that token, and is written by nobody else. A token is taken by creating
its key, which one job alone can, and the highest token is the lease: no key is ever changed by two. They stay, some
hundred bytes for each time that an artifact was made, so that a job that lost its lease is known by its old token.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, replace

from rufus_core.lineage.lease import EXPIRES_SECONDS, Beating, HolderWatch, Holding, parse_holding
from rufus_core.lineage.names import record_id
from rufus_core.lineage.process import ProcessId
from rufus_core.lineage.roots import Root
from rufus_core.lineage.shared_layout import lease_folder, lease_key, token_of


class SharedLease(Beating):
    """The lease of one artifact at a shared root, held by this process from `acquire_shared` to `release`."""

    def __init__(self, root: Root, name: str, fingerprint: str, holding: Holding) -> None:
        super().__init__(name, fingerprint, holding)
        self._root, self._holding = root, holding

    def renew(self) -> None:
        """Count a beat. Raises LeaseLost, and InfrastructureError where the root fails."""
        self.require()
        self._holding = replace(self._holding, beat=self._holding.beat + 1)
        _write(self._root, self, self._holding)

    def require(self) -> Holding:
        """What this lease says. Raises LeaseLost if another job took it: then the next token is there."""
        later = self._root.read(lease_key(self.name, self.fingerprint, self.token + 1))
        if later is not None:
            raise self.lost(parse_holding(later, self._root.url).owner)
        return self._holding

    def release(self) -> None:
        """Let others have it; nothing if it was lost."""
        _write(self._root, self, replace(self._holding, owner=None))


def acquire_shared(root: Root, name: str, fingerprint: str, expires_seconds: float | None = None) -> SharedLease:
    """Take the lease of an artifact at a shared root.

    The holder is judged as in `lease.acquire`.

    Raises:
        LeaseHeld: its holder lives.
        InfrastructureError: the root fails.
    """
    watch = HolderWatch(record_id(name, fingerprint))
    while True:
        holding = _highest(root, name, fingerprint)
        if not watch.is_over(holding):
            watch.wait(holding)
            continue
        taken = Holding(holding.token + 1, ProcessId.mine(), 0, expires_seconds or EXPIRES_SECONDS)
        if root.create(lease_key(name, fingerprint, taken.token), _text(taken)):
            return SharedLease(root, name, fingerprint, taken)
        watch = HolderWatch(record_id(name, fingerprint))  # another job was quicker: its holding is looked at next


def _highest(root: Root, name: str, fingerprint: str) -> Holding:
    """The holding of the highest token. What a list says may be old, so keys are asked for from there on."""
    token = max(map(token_of, root.keys(lease_folder(name, fingerprint))), default=1)
    holding = Holding()
    while (raw := root.read(key := lease_key(name, fingerprint, token))) is not None:
        holding = parse_holding(raw, f"{root.url}/{key}")
        token += 1
    return holding


def _write(root: Root, lease: SharedLease, holding: Holding) -> None:
    root.write(lease_key(lease.name, lease.fingerprint, lease.token), _text(holding))


def _text(holding: Holding) -> bytes:
    # The mark tells two threads of one process apart: a root takes equal bytes for those of one writer.
    return (json.dumps({**asdict(holding), "mark": uuid.uuid4().hex}) + "\n").encode()
