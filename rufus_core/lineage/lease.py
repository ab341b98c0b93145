"""Leases: at most one job makes the artifact of a name and fingerprint.

`leases/<name>.<fp>.json` says who holds it; it is changed only under the artifact's lock. The file stays when the lease
is released: its token only grows, so a job that lost its lease is known by its old one, however late it wakes up.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rufus_core.errors import LeaseHeld, LeaseLost, LineageError, RufusError
from rufus_core.lineage.files import locked, told_plainly, write_whole
from rufus_core.lineage.names import artifact_label, record_id
from rufus_core.lineage.process import ProcessId

EXPIRES_SECONDS = 60.0
_LOOKS = 20  # at the beat of another host's holder, in the time until its lease expires


@dataclass(frozen=True, slots=True)
class Holding:
    """What a lease's file says. Nobody holds a lease without an `owner`; `beat` counts its renewals."""

    token: int = 0
    owner: ProcessId | None = None
    beat: int = 0
    expires_seconds: float = EXPIRES_SECONDS


class Beating(ABC):
    """What leases of every kind have: a holder that counts beats."""

    def __init__(self, name: str, fingerprint: str, holding: Holding) -> None:
        self.name, self.fingerprint, self.token = name, fingerprint, holding.token
        self.expires_seconds = holding.expires_seconds

    @abstractmethod
    def renew(self) -> None: ...

    @contextmanager
    def renewed(self, lost: Callable[[LeaseLost], None]) -> Iterator[None]:
        """Within, a thread counts a beat every third of the expiry, and calls `lost` once if the lease was lost."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(self.expires_seconds / 3):
                try:
                    self.renew()
                except LeaseLost as error:
                    lost(error)
                    return
                except RufusError as error:  # a full disk, say: publishing asks for the lease again
                    print(f"warning: {error}", flush=True)

        thread = threading.Thread(target=beat, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def lost(self, to: ProcessId | None) -> LeaseLost:
        return LeaseLost(
            f"this job lost its lease to {to or 'a later job'}: it stops and publishes nothing",
            where=record_id(self.name, self.fingerprint),
            hint="the later job makes the artifact; run the same command again to wait for it",
        )


class Lease(Beating):
    """The lease of one artifact in a local store, held by this process from `acquire` to `release`."""

    def __init__(self, root: Path, name: str, fingerprint: str, holding: Holding) -> None:
        super().__init__(name, fingerprint, holding)
        self._owner = holding.owner
        self._id = record_id(name, fingerprint)
        self._file, self._lock = lease_file(root, name, fingerprint), lock_file(root, name, fingerprint)

    def renew(self) -> None:
        """Count a beat. Raises LeaseLost, and LineageError where the file can't be written."""
        with told_plainly(f"renew the lease of {self._id}", self._file), locked(self._lock):
            holding = self.require()
            _write(self._file, replace(holding, beat=holding.beat + 1))

    def require(self) -> Holding:
        """What the file says. Raises LeaseLost if another job took the lease. Whoever acts on it holds the lock."""
        holding = read_holding(self._file)
        if (holding.token, holding.owner) != (self.token, self._owner):
            raise self.lost(holding.owner)
        return holding

    def release(self) -> None:
        """Let others have it; nothing if it was lost."""
        with told_plainly(f"release the lease of {self._id}", self._file), locked(self._lock):
            holding = read_holding(self._file)
            if (holding.token, holding.owner) == (self.token, self._owner):
                _write(self._file, replace(holding, owner=None))


class HolderWatch:
    """Judges the holder of a lease by one look after another.

    One on this host by its process. One of another host is dead if its beat doesn't change for the time that its lease
    says, on this process's own clock.
    """

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted  # id of the artifact
        self._seen: Holding | None = None
        self._began = 0.0

    def is_over(self, holding: Holding) -> bool:
        """Whether the lease may be taken from whom it names."""
        expired = holding == self._seen and time.monotonic() - self._began >= holding.expires_seconds
        return holding.owner is None or holding.owner.gone() or expired

    def wait(self, holding: Holding) -> None:
        """Wait until the next look at a holder that isn't over. Raises LeaseHeld if it lives."""
        owner = holding.owner
        assert owner is not None
        if owner.here() or (self._seen is not None and holding != self._seen):
            raise LeaseHeld(f"a job of process {owner.pid} on {owner.host} is making it", where=self._wanted)
        if self._seen is None:
            self._seen, self._began = holding, time.monotonic()
        time.sleep(holding.expires_seconds / _LOOKS)


def acquire(root: Path, name: str, fingerprint: str, expires_seconds: float | None = None) -> Lease:
    """Take the lease of an artifact in the store at `root`.

    A holder is judged by HolderWatch: the call waits as long as its lease says at most.

    Raises:
        LeaseHeld: its holder lives.
        LineageError: the lease can't be read or written.
    """
    file, lock = lease_file(root, name, fingerprint), lock_file(root, name, fingerprint)
    watch = HolderWatch(record_id(name, fingerprint))
    while True:
        with told_plainly(f"take the lease of {record_id(name, fingerprint)}", file), locked(lock):
            holding = read_holding(file)
            if watch.is_over(holding):
                taken = Holding(holding.token + 1, ProcessId.mine(), 0, expires_seconds or EXPIRES_SECONDS)
                file.parent.mkdir(parents=True, exist_ok=True)
                _write(file, taken)
                return Lease(root, name, fingerprint, taken)
        watch.wait(holding)


def read_holding(file: Path) -> Holding:
    """Raises LineageError where the file is there and says nothing sensible."""
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        return Holding()
    return parse_holding(raw, str(file))


def parse_holding(raw: bytes, where: str) -> Holding:
    """Raises LineageError where it says nothing sensible."""
    try:
        told = json.loads(raw)
        owner = told["owner"] and ProcessId(**told["owner"])
        return Holding(int(told["token"]), owner, int(told["beat"]), float(told["expires_seconds"]))
    except (ValueError, TypeError, KeyError) as error:
        raise LineageError(
            "this lease can't be read", where=where, hint="when no run uses the store, delete that file"
        ) from error


def lease_file(root: Path, name: str, fingerprint: str) -> Path:
    return root / "leases" / f"{artifact_label(name, fingerprint)}.json"


def lock_file(root: Path, name: str, fingerprint: str) -> Path:
    return root / "locks" / artifact_label(name, fingerprint)


def _write(file: Path, holding: Holding) -> None:
    write_whole(file, json.dumps(asdict(holding)) + "\n")
