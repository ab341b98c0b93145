"""Holds the GPU slots of a job: `python -m flows.slot_keeper STEP LIMIT SLOTS FOLDER SECONDS EXECUTION`.

A process of its own. As the job in FOLDER does, it outlives its run, which holds the other end of standard input.
A byte there says that the step is over, and the slots are given back. A run that dies says nothing: then they are kept
while its job lives, the lease renewed each SECONDS, and EXECUTION says who can be asked whether it does. Meanwhile
`LEASE.slots` lies in the job's folder. The keeper of a run that comes back
removes that file and goes on with the lease: who removes it renews and releases it, and nobody else. While a dead run's
keeper itself renews, the file has another name (RENEWING), so that at every moment there is one of the two.

Each line of output is for the run: HELD when the slots are, else a warning.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from rufus_core.settings import ExecutionSettings
from tasks.jobs import JobResources, LaunchedJob
from tasks.launchers import open_launcher

HELD = "held"
LEASE_SECONDS = 60.0  # the shortest that Prefect gives
ASK_SECONDS = 2.0  # while others hold the slots
LOOK_SECONDS = 0.5  # whether a dead run's job lives
RENEWING = "slots.renewing"
RETRIES = 1  # of Prefect's own, which would ask a dead server for a minute without looking whether the job lives
STDIN, STDOUT = 0, 1


class Keeper:
    def __init__(
        self, client: SyncPrefectClient, step: str, limit: str, slots: int, job: LaunchedJob, renew_seconds: float
    ) -> None:
        self._client = client
        self._step, self._limit, self._slots = step, limit, slots
        self._job, self._folder, self._renew_seconds = job, job.folder, renew_seconds
        self._renewing = job.folder / RENEWING
        self._lease: UUID | None = None  # the last one, even if it has lapsed
        self._told = ""

    def keep(self) -> None:
        """Until neither the run nor its job needs the slots."""
        over = self._keep_for_run()
        if self._lease is None or (not over and not self._keep_for_job()):
            return
        with suppress(httpx.HTTPError, PrefectException):  # else they are free when the lease ends
            self._client.release_concurrency_slots_with_lease(self._lease)

    def _keep_for_run(self) -> bool:
        """While the run lives; whether it said that its step is over."""
        while True:
            self._hold()
            seconds = ASK_SECONDS if self._lease is None else self._renew_seconds
            if select.select([STDIN], [], [], seconds)[0]:
                return os.read(STDIN, 1) != b""

    def _keep_for_job(self) -> bool:
        """While the job lives that a dead run left; whether the lease is still ours."""
        while self._job.lives():
            offer = self._folder / f"{self._lease}.slots"
            offer.touch()
            self._renewing.unlink(missing_ok=True)
            due = time.monotonic() + self._renew_seconds
            while time.monotonic() < due and offer.exists() and self._job.lives():
                time.sleep(min(LOOK_SECONDS, self._renew_seconds))
            try:
                offer.rename(self._renewing)
            except FileNotFoundError:
                return False
            self._hold()
        self._renewing.unlink(missing_ok=True)
        return True

    def _hold(self) -> None:
        """Renew a lease, or get one where there is none to renew. What is in the way, the run is told."""
        try:
            for lease in self._leases():
                self._lease = lease
                if self._renewed(lease):
                    return self._tell(HELD)
            if (acquired := self._acquired()) is not None:
                self._lease = acquired
                self._renewing.unlink(missing_ok=True)  # of a keeper that died meanwhile
                self._tell(HELD)
            elif self._lease is not None:
                self._tell(f"the GPUs of {self._step} were given to another run: its lease was not renewed in time")
            elif not self._kept_for_job():
                self._tell(f"{self._step} waits until {self._slots} slots of {self._limit} are free")
        except (httpx.HTTPError, PrefectException) as error:
            why = f"for Prefect can't be told that it lives: {error}"
            self._tell(f"the GPUs of {self._step} may be given to another run, {why}")

    def _kept_for_job(self) -> bool:
        """Whether the keeper of a dead run holds the slots for this very job, and is about to offer them again."""
        return any(self._folder.glob("*.slots")) or self._renewing.exists()

    def _leases(self) -> Iterator[UUID]:
        """Its own one, then those that keepers of dead runs hold for the same job, each taken from its keeper."""
        if self._lease is not None:
            yield self._lease
        for offer in self._folder.glob("*.slots"):
            if _removed(offer):
                yield UUID(offer.stem)

    def _renewed(self, lease: UUID) -> bool:
        """False when it has lapsed."""
        try:
            self._client.renew_concurrency_lease(lease, LEASE_SECONDS)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.GONE:
                raise
            return False
        return True

    def _acquired(self) -> UUID | None:
        """None while others hold the slots."""
        try:
            answer = self._client.increment_concurrency_slots_with_lease(
                [self._limit], self._slots, "concurrency", LEASE_SECONDS
            )
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.LOCKED:
                raise
            return None
        return UUID(answer.json()["lease_id"])

    def _tell(self, line: str) -> None:
        """Say it to the run, if it lives, and once."""
        if line != self._told:
            self._told = line
            with suppress(BrokenPipeError):
                os.write(STDOUT, " ".join(line.split()).encode() + b"\n")


def _removed(offer: Path) -> bool:
    """Whether it was we who removed it."""
    try:
        offer.unlink()
    except FileNotFoundError:
        return False
    return True


def main(step: str, limit: str, slots: str, folder: str, renew_seconds: str, execution: str) -> None:
    settings = ExecutionSettings.model_validate_json(execution)
    with (
        open_launcher(settings) as launcher,
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: RETRIES}),
        get_client(sync_client=True) as client,
    ):
        job = launcher.job(Path(folder), JobResources())
        Keeper(client, step, limit, int(slots), job, float(renew_seconds)).keep()


if __name__ == "__main__":
    main(*sys.argv[1:])
