"""Leases, with real processes: one holder, tokens that only grow, and no trust in clocks."""

from __future__ import annotations

import json
import platform
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from rufus_core.errors import LeaseHeld, LeaseLost, LineageError
from rufus_core.lineage import fingerprint, lease
from rufus_core.lineage.files import locked
from rufus_core.lineage.lease import acquire, lease_file, lock_file, read_holding
from rufus_core.lineage.process import ProcessId
from tests.lineage.holders import Worker

NAME = "stages/sft/train"
FINGERPRINT = fingerprint("training", "1", {}, {})
EXPIRES_SECONDS = 0.05


def worker(root: Path, host: str | None = None) -> Worker:
    return Worker(
        lambda: acquire(root, NAME, FINGERPRINT, EXPIRES_SECONDS),
        host,
        publishing=lambda: locked(lock_file(root, NAME, FINGERPRINT)),
    )


class Leases(RuleBasedStateMachine):
    """Against a model: who holds it, and with which token. Nobody counts a beat unless told, so silence is death."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.hosts = [None, None, "there", "there"]
        self.workers = [self.start(host) for host in self.hosts]
        self.tokens: list[int | None] = [None] * 4  # of the lease that each worker believes it has
        self.holder: int | None = None  # who it is by the file; it may be dead
        self.living = True
        self.token = 0

    def start(self, host: str | None) -> Worker:
        return worker(Path(self.folder.name), host)

    @rule(who=st.integers(0, 3))
    def acquire(self, who: int) -> None:
        held_here = self.holder is not None and self.living and self.hosts[self.holder] == self.hosts[who]
        if held_here:
            assert self.workers[who]("acquire") == LeaseHeld.__name__
            return
        self.token += 1
        assert self.workers[who]("acquire") == self.token
        self.holder, self.living, self.tokens[who] = who, True, self.token

    @rule(who=st.integers(0, 3), word=st.sampled_from(["renew", "require"]))
    def use(self, who: int, word: str) -> None:
        if self.tokens[who] is not None:
            holds = self.holder == who and self.tokens[who] == self.token
            assert self.workers[who](word) == (self.token if holds else LeaseLost.__name__)

    @rule(who=st.integers(0, 3))
    def release(self, who: int) -> None:
        if self.tokens[who] is not None:
            assert self.workers[who]("release") == self.tokens[who]
            if self.holder == who:
                self.holder = None

    @rule(who=st.integers(0, 3))
    def kill(self, who: int) -> None:
        self.workers[who].kill()
        self.workers[who], self.tokens[who] = self.start(self.hosts[who]), None
        if self.holder == who:
            self.living = False

    @precondition(lambda self: self.token > 0)
    @rule()
    def the_file_tells(self) -> None:
        holding = read_holding(lease_file(Path(self.folder.name), NAME, FINGERPRINT))
        assert holding.token == self.token
        assert (holding.owner is None) == (self.holder is None)

    def teardown(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.folder.cleanup()


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=12, stateful_step_count=15, deadline=None)


def test_a_refusal_names_the_holder(tmp_path: Path) -> None:
    acquire(tmp_path, NAME, FINGERPRINT)
    with pytest.raises(LeaseHeld, match=f"process {psutil.Process().pid} on {platform.node()}") as caught:
        acquire(tmp_path, NAME, FINGERPRINT)
    assert str(caught.value).startswith(f"{NAME}/{FINGERPRINT[:16]}: ")


def test_leases_of_other_artifacts_are_other_leases(tmp_path: Path) -> None:
    acquire(tmp_path, NAME, FINGERPRINT)
    assert acquire(tmp_path, NAME, fingerprint("training", "2", {}, {})).token == 1
    assert acquire(tmp_path, "stages/rlhf/train", FINGERPRINT).token == 1


def test_a_holder_of_another_host_lives_while_it_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = worker(tmp_path, "there")
    assert elsewhere("acquire") == 1
    with monkeypatch.context() as patch:
        patch.setattr(lease.time, "sleep", lambda _: elsewhere("renew"))
        with pytest.raises(LeaseHeld, match="on there"):
            acquire(tmp_path, NAME, FINGERPRINT)
    assert acquire(tmp_path, NAME, FINGERPRINT).token == 2  # it fell silent
    assert elsewhere("renew") == LeaseLost.__name__
    elsewhere.kill()


@pytest.mark.parametrize("hours", [-1, 1])
def test_clocks_that_differ_and_clocks_that_are_set_are_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """The holder's clock, and that of the host under a running process, is an hour off."""
    elsewhere, here = worker(tmp_path, "there"), acquire(tmp_path, "base", FINGERPRINT)
    assert elsewhere("acquire") == 1
    now, boot, created = time.time, psutil.boot_time, psutil.Process.create_time
    monkeypatch.setattr(time, "time", lambda: now() + hours * 3600)
    monkeypatch.setattr(psutil, "boot_time", lambda: boot() + hours * 3600)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) + hours * 3600)
    assert ProcessId.mine().find() is not None
    with pytest.raises(LeaseHeld):
        acquire(tmp_path, "base", FINGERPRINT)
    here.renew()
    with monkeypatch.context() as patch:
        patch.setattr(lease.time, "sleep", lambda _: elsewhere("renew"))
        with pytest.raises(LeaseHeld):
            acquire(tmp_path, NAME, FINGERPRINT)
    elsewhere.kill()


def test_a_thread_counts_beats_and_tells_a_loss_once(tmp_path: Path) -> None:
    held = acquire(tmp_path, NAME, FINGERPRINT, EXPIRES_SECONDS)
    file = lease_file(tmp_path, NAME, FINGERPRINT)
    lost: list[LeaseLost] = []
    told = threading.Event()
    with held.renewed(lambda error: (lost.append(error), told.set())):
        while read_holding(file).beat < 2:
            time.sleep(0.01)
        with locked(lock_file(tmp_path, NAME, FINGERPRINT)):
            holding = json.loads(file.read_text())
            holding["token"] += 1
            holding["owner"]["host"] = "there"
            file.write_text(json.dumps(holding))
        assert told.wait(60)
    held.release()
    assert len(lost) == 1
    assert "there/" in str(lost[0])
    assert read_holding(file).token == held.token + 1  # releasing what was lost changes nothing
    assert read_holding(file).owner is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"token": 1, "owner": {"x": 1}, "beat": 0}'])
def test_a_lease_that_can_not_be_read_is_told_with_what_to_do(tmp_path: Path, text: str) -> None:
    file = lease_file(tmp_path, NAME, FINGERPRINT)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(LineageError, match="delete that file") as caught:
        acquire(tmp_path, NAME, FINGERPRINT)
    assert caught.value.where == str(file)


def test_a_process_is_told_as_text_and_read_again() -> None:
    mine = ProcessId.mine()
    again = ProcessId.parse(str(mine))
    assert again.find() == psutil.Process()
    assert not again.gone()
    other = ProcessId(mine.pid, mine.started - 100.0)
    assert other.gone()
    elsewhere = ProcessId(mine.pid, mine.started, "there")
    assert elsewhere.find() is None
    assert not elsewhere.gone()
