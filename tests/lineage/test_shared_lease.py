"""Leases at a shared root, with real processes that share nothing else: one holder, and tokens that only grow."""

from __future__ import annotations

import functools
import json
import platform
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rufus_core.errors import LeaseHeld, LeaseLost, LineageError
from rufus_core.lineage import fingerprint, lease
from rufus_core.lineage.roots import open_root
from rufus_core.lineage.shared_layout import lease_folder, lease_key
from rufus_core.lineage.shared_lease import SharedLease, acquire_shared
from tests.lineage.holders import Worker
from tests.shared_roots import Place

NAME = "stages/sft/train"
KEY = fingerprint("training", "1", {}, {})
EXPIRES_SECONDS = 0.05


Start = Callable[..., Worker]


@pytest.fixture
def start(place: Place) -> Iterator[Start]:
    workers: list[Worker] = []

    def begin(host: str | None = None) -> Worker:
        root = functools.cache(open_root)  # by the worker itself: a connection is for one process
        workers.append(Worker(lambda: acquire_shared(root(place.url), NAME, KEY, EXPIRES_SECONDS), host))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.kill()


def acquire(place: Place, expires_seconds: float = EXPIRES_SECONDS) -> SharedLease:
    return acquire_shared(open_root(place.url), NAME, KEY, expires_seconds)


def test_it_is_held_by_one_and_released_to_the_next(place: Place, start: Start) -> None:
    first = acquire(place)
    with pytest.raises(LeaseHeld, match=f"on {platform.node()}"):
        acquire(place)
    assert start()("acquire") == LeaseHeld.__name__
    first.renew()
    first.release()
    assert start()("acquire") == 2
    with pytest.raises(LeaseLost):
        first.require()


def test_of_many_that_ask_at_once_one_gets_it(place: Place, start: Start) -> None:
    workers = [start() for _ in range(4)]
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda w=worker: answers.append(w("acquire"))) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answers)) == ["1", *[LeaseHeld.__name__] * 3]


def test_a_dead_holder_of_this_host_is_followed_at_once(place: Place, start: Start) -> None:
    holder = start()
    assert holder("acquire") == 1
    holder.kill()
    assert acquire(place).token == 2


def test_a_holder_of_another_host_lives_while_it_beats(
    place: Place, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = start("there")
    assert elsewhere("acquire") == 1
    with monkeypatch.context() as patch:
        patch.setattr(lease.time, "sleep", lambda _: elsewhere("renew"))
        with pytest.raises(LeaseHeld, match="on there"):
            acquire(place)
    mine = acquire(place)  # it fell silent
    assert mine.token == 2
    for word in ("renew", "require"):
        assert elsewhere(word) == LeaseLost.__name__
    assert elsewhere("release") == 1  # harms nobody
    mine.renew()
    with pytest.raises(LeaseHeld):
        acquire(place)


def test_a_thread_counts_beats_and_tells_a_loss_once(place: Place) -> None:
    held = acquire(place)
    lost: list[LeaseLost] = []
    told = threading.Event()

    def beat() -> int:
        return int(json.loads(place.read(lease_key(NAME, KEY, 1)))["beat"])

    with held.renewed(lambda error: (lost.append(error), told.set())):
        while beat() < 2:
            time.sleep(0.01)
        later = json.loads(place.read(lease_key(NAME, KEY, 1)))
        later["token"], later["owner"]["host"] = 2, "there"
        place.write(lease_key(NAME, KEY, 2), json.dumps(later).encode())
        assert told.wait(60)
    assert len(lost) == 1
    assert "there/" in str(lost[0])


def test_a_list_that_is_late_misleads_nobody(place: Place) -> None:
    """A token that the listing doesn't show yet is found by its key."""

    class Late(type(open_root(place.url))):  # type: ignore[misc]
        def keys(self, folder: str) -> list[str]:
            return []

    for token in (1, 2, 3):
        acquire(place).release()
        assert place.listed()[token - 1].startswith(lease_folder(NAME, KEY))
    late = open_root(place.url)
    late.__class__ = Late
    assert acquire_shared(late, NAME, KEY).token == 4


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}"])
def test_a_lease_that_can_not_be_read_is_told_with_what_to_do(place: Place, text: bytes) -> None:
    place.write(lease_key(NAME, KEY, 1), text)
    with pytest.raises(LineageError, match="delete that file") as caught:
        acquire(place)
    assert caught.value.where == f"{place.url}/{lease_key(NAME, KEY, 1)}"
