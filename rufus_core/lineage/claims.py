"""What the holder of a lease does with attempts: go on from a dead one, and clear away what nothing goes on from."""

from __future__ import annotations

import shutil

from rufus_core.lineage.attempt import Attempt, attempts_in, new_attempt
from rufus_core.lineage.files import locked, told_plainly
from rufus_core.lineage.lease import Lease, lock_file
from rufus_core.lineage.names import record_id
from rufus_core.lineage.process import ProcessId
from rufus_core.lineage.store import Store


def claim(store: Store, lease: Lease) -> Attempt:
    """The attempt that the lease's holder writes into: the newest dead one with state as it is, else a fresh one."""
    folder = store.root / "attempts"
    with told_plainly(f"start writing {record_id(lease.name, lease.fingerprint)}", folder):
        left = [attempt for attempt in attempts_in(folder) if _is_of(attempt, lease) and _superseded(attempt)]
        newest = max((attempt for attempt in left if attempt.has_state()), key=Attempt.age_key, default=None)
        if newest is None:
            return store.attempt(lease.name, lease.fingerprint)
        if newest.alive():  # a process of another host that lost the lease may still write there: so a copy
            copy = new_attempt(folder, lease.name, lease.fingerprint, newest)
            newest.discard()
            return copy
        with locked(lock_file(store.root, lease.name, lease.fingerprint)):
            lease.require()
            newest.take_over()
        return newest


def tidy(store: Store, lease: Lease | None = None) -> None:
    """Discard what dead jobs left and nothing goes on from.

    What has state stays while its artifact isn't published, for its step may still be wanted. Attempts of other hosts
    stay, but for those at the artifact of the caller's lease.
    """
    folder = store.root / "attempts"
    with told_plainly("clear away attempts", folder):
        for attempt in attempts_in(folder):
            own = lease is not None and _is_of(attempt, lease) and _superseded(attempt)
            if own or not attempt.alive():
                with locked(lock_file(store.root, attempt.name, attempt.fingerprint)):
                    over = not attempt.has_state() or store.has(attempt.name, attempt.fingerprint)
                    if over and (own or not attempt.alive()):
                        attempt.discard()
        for attempt in attempts_in(folder, hidden=True):
            if (lease is not None and _is_of(attempt, lease)) or store.has(attempt.name, attempt.fingerprint):
                shutil.rmtree(attempt.home, ignore_errors=True)


def abandon(store: Store, lease: Lease) -> None:
    """Discard this process's attempts at the lease's artifact."""
    mine = ProcessId.mine()
    for attempt in attempts_in(store.root / "attempts"):
        if _is_of(attempt, lease) and attempt.owner() == mine:
            attempt.discard()


def _is_of(attempt: Attempt, lease: Lease) -> bool:
    return (attempt.name, attempt.fingerprint) == (lease.name, lease.fingerprint)


def _superseded(attempt: Attempt) -> bool:
    """Whether no process of this host writes into it. One of another host has lost the lease, if it lives."""
    owner = attempt.owner()
    return owner is None or owner.find() is None
