"""A shared root, as a folder and as a bucket of a real S3 server: what goes there, comes back, and goes wrong."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rufus_core.errors import ConfigError, InfrastructureError, LineageError
from rufus_core.lineage import Draft, Provenance, Record, Store, fingerprint, roots, trace
from rufus_core.lineage.collect import collect, collectable
from rufus_core.lineage.crash_points import CRASH_AT, SHARING, CrashPoint
from rufus_core.lineage.diff import diff
from rufus_core.lineage.impact import impact
from rufus_core.lineage.provenance import Code, diff_file
from rufus_core.lineage.record import dump_sealed
from rufus_core.lineage.shared import Shared
from rufus_core.lineage.shared_layout import file_key, record_key
from rufus_core.lineage.sharing import fetch, mirror, share
from rufus_core.lineage.verify import verify_store
from tests.lineage.miniature import make, make_recipe
from tests.shared_roots import ENVIRONMENT, Place, S3Server

ROOT = Path(__file__).parents[2]
FORK = multiprocessing.get_context("fork")
NAME = "stages/sft/train"
KEY = fingerprint("training", "1", {}, {})


def home(folder: Path, place: Place) -> Store:
    """The store of another home, of this host or of another one: nothing but the root tells them apart."""
    return Store(folder / "store", shared=Shared.at(place.url))


@pytest.fixture
def mine(tmp_path: Path, place: Place) -> Store:
    return home(tmp_path / "mine", place)


@pytest.fixture
def theirs(tmp_path: Path, place: Place) -> Store:
    return home(tmp_path / "theirs", place)


def publish(store: Store, text: str = "weights") -> Record:
    attempt = store.attempt(NAME, KEY)
    (attempt.folder / "model.bin").write_text(text)
    (attempt.folder / "deep" / "er").mkdir(parents=True)
    (attempt.folder / "deep" / "er" / "empty").touch()
    return store.publish(attempt, Draft(kind="training", version="1"))


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# There and back


def test_what_is_shared_comes_back_bit_for_bit_with_its_record(mine: Store, theirs: Store, place: Place) -> None:
    record = publish(mine)
    assert theirs.find(NAME, KEY) is None
    assert share(mine, record) == record
    assert theirs.find(NAME, KEY) == record
    assert fetch(theirs, record) == theirs.path(record)
    assert tree(theirs.path(record)) == tree(mine.path(record))
    assert theirs.changes(record) == ()
    assert not (theirs.root / "replaced").exists()
    assert not any((theirs.root / "attempts").iterdir())
    before = place.listed()
    assert share(theirs, record) == record
    assert place.listed() == before


def test_equal_files_lie_there_once(mine: Store, place: Place) -> None:
    make_two = [make(mine, name, "base", {"a": "same", "b": "same"}) for name in ("base", "other")]
    for record in make_two:
        share(mine, record)
    assert len([key for key in place.listed() if key.startswith("files/")]) == 1


def test_a_big_file_goes_in_parts_and_comes_back(mine: Store, theirs: Store) -> None:
    attempt = mine.attempt(NAME, KEY)
    block = bytes(range(256)) * 4096
    (attempt.folder / "model.bin").write_bytes(
        b"".join(bytes([n]) + block for n in range(110))
    )  # over two parts of 50 MiB
    record = share(mine, mine.publish(attempt, Draft(kind="training", version="1")))
    fetch(theirs, record)
    assert theirs.changes(record) == ()


def test_without_a_root_all_this_does_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    record = publish(store)
    before = tree(store.root)
    assert (mirror(store), share(store, record), fetch(store, record)) == ([], record, store.path(record))
    assert tree(store.root) == before


def test_a_broken_copy_is_replaced_by_the_shared_one(mine: Store, theirs: Store) -> None:
    record = share(mine, publish(mine))
    (mine.path(record) / "model.bin").write_text("rotten")
    assert mine.find(NAME, KEY) == record
    fetch(mine, record)
    assert mine.changes(record) == ()
    (broken,) = (mine.root / "replaced").iterdir()
    assert (broken / "model.bin").read_text() == "rotten"


def test_wrong_bytes_are_not_shared(mine: Store, place: Place) -> None:
    record = publish(mine)
    (mine.path(record) / "model.bin").write_text("WEIGHTS")
    with pytest.raises(LineageError, match="changed since it was recorded"):
        share(mine, record)
    assert not any(key.startswith("records/") for key in place.listed())


# Two at once


def test_the_first_record_holds_for_both(mine: Store, theirs: Store) -> None:
    first, second = publish(mine), publish(theirs)
    assert first != second  # published at another time
    assert share(mine, first) == first
    assert share(theirs, second) == first
    assert theirs.find(NAME, KEY) == first
    assert tree(theirs.path(first)) == tree(mine.path(first))
    assert not (theirs.root / "replaced").exists()


def test_of_other_bytes_the_later_ones_move_to_replaced(mine: Store, theirs: Store) -> None:
    first, second = share(mine, publish(mine, "one")), publish(theirs, "two")
    assert theirs.find(NAME, KEY) == second
    assert share(theirs, second) == first
    assert theirs.find(NAME, KEY) == first
    fetch(theirs, first)
    assert tree(theirs.path(first)) == tree(mine.path(first))
    (loser,) = (theirs.root / "replaced").iterdir()
    assert (loser / "model.bin").read_text() == "two"


@pytest.mark.parametrize("texts", [("same",) * 4, ("one", "two", "three", "four")])
def test_processes_that_share_at_once_end_with_one_record(tmp_path: Path, place: Place, texts: tuple[str, ...]) -> None:
    barrier = FORK.Barrier(len(texts))

    def work(number: int, text: str) -> None:
        store = home(tmp_path / str(number), place)
        record = publish(store, text)
        barrier.wait()
        share(store, record)

    processes = [FORK.Process(target=work, args=(number, text)) for number, text in enumerate(texts)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(texts)
    found = [home(tmp_path / str(number), place).find(NAME, KEY) for number in range(len(texts))]
    assert len({record.model_dump_json() for record in found if record}) == 1
    assert None not in found
    assert len([key for key in place.listed() if key.startswith("records/")]) == 1


# Crashes

SHARE = """
import sys
from pathlib import Path
from rufus_core.lineage import Store
from rufus_core.lineage.shared import Shared
from rufus_core.lineage.sharing import share
store = Store(Path(sys.argv[1]), shared=Shared.at(sys.argv[2]))
share(store, store.records()[0])
"""


@pytest.mark.parametrize("point", SHARING)
def test_killed_while_it_shares_the_next_one_ends_it(
    mine: Store, theirs: Store, place: Place, point: CrashPoint
) -> None:
    record = publish(mine)
    command = [sys.executable, "-c", SHARE, str(mine.root), place.url]
    killed = subprocess.run(command, env={**os.environ, CRASH_AT: point}, cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    there = theirs.find(NAME, KEY)
    assert there == (record if point is CrashPoint.AFTER_SHARED_RECORD else None)
    assert mine.find(NAME, KEY) == record
    assert share(mine, record) == record
    fetch(theirs, record)
    assert theirs.changes(record) == ()


# Bytes that went bad


def test_a_flipped_byte_is_found_on_the_way_and_nothing_is_left_half(mine: Store, theirs: Store, place: Place) -> None:
    record = share(mine, publish(mine))
    key = file_key(record.files["model.bin"].sha256)
    place.flip(key)
    assert theirs.find(NAME, KEY) == record
    before = tree(theirs.path(record))
    with pytest.raises(LineageError, match=f"model.bin of {record.id} is not as recorded") as caught:
        fetch(theirs, record)
    assert caught.value.where == f"{place.url}/{key}"
    assert "rufus verify" in str(caught.value)
    assert tree(theirs.path(record)) == before
    assert not any((theirs.root / "attempts").iterdir())


@pytest.mark.parametrize("gone", [False, True])
def test_verify_reads_the_root_and_its_advice_mends_it(mine: Store, theirs: Store, place: Place, gone: bool) -> None:
    record = share(mine, publish(mine))
    assert verify_store(mine, shared=True).differences == ()
    key = file_key(record.files["model.bin"].sha256)
    place.delete(key) if gone else place.flip(key)
    assert verify_store(mine).differences == ()
    (difference,) = verify_store(mine, shared=True).differences
    assert difference.where == record.id
    assert f"model.bin {'missing' if gone else 'changed'}" in difference.what
    advised = [word.rstrip(",") for word in difference.next.split() if word.startswith(place.url)]
    assert len(advised) == (1 if gone else 2)
    for address in advised:
        place.delete(address.removeprefix(f"{place.url}/"))
    share(mine, record)
    assert verify_store(mine, shared=True).differences == ()
    fetch(theirs, record)


@pytest.mark.parametrize("wrong", ["cut", "altered", "moved", "outside"])
def test_an_altered_record_is_refused_and_hides_no_other(mine: Store, theirs: Store, place: Place, wrong: str) -> None:
    record = share(mine, publish(mine))
    other = share(mine, make(mine, "base", "base", {"a": "a"}))
    key = record_key(record.name, record.fingerprint)
    content = json.loads(place.read(key))
    content.pop("seal")
    if wrong == "cut":
        place.write(key, place.read(key)[:-20])
    elif wrong == "altered":
        place.write(key, place.read(key).replace(b'"kind": "training"', b'"kind": "checkpoint"'))
    elif wrong == "moved":
        place.write(key, place.read(record_key(other.name, other.fingerprint)))
    else:  # sealed anew by whoever made it
        content["files"]["../../../escaped"] = content["files"].pop("model.bin")
        place.write(key, dump_sealed(content).encode())
    with pytest.raises(LineageError, match=r"record") as caught:
        theirs.find(NAME, KEY)
    assert caught.value.where == f"{place.url}/{key}"
    (fault,) = mirror(theirs)
    assert fault.where == caught.value.where
    assert theirs.records() == (other,)


# Records without bytes


def test_questions_are_answered_from_a_fresh_home_without_bytes(
    mine: Store, theirs: Store, place: Place, tmp_path: Path
) -> None:
    checkpoint = make_recipe(mine, tmp_path / "chats.jsonl")
    for record in mine.records():
        share(mine, record)
    for key in place.listed():
        if key.startswith("files/"):
            place.delete(key)  # so that nothing can be fetched
    assert mirror(theirs) == []
    assert theirs.records() == mine.records()
    told = trace(theirs, theirs.resolve("coding_rl"))
    here = trace(mine, mine.resolve("coding_rl"))
    assert told.problems == ()
    assert told.edges == here.edges
    assert {node.status for node in told.nodes if node.fingerprint} == {"shared"}
    assert impact(theirs, "sft") == impact(mine, "sft")
    assert diff(theirs, theirs.resolve("base"), theirs.resolve("sft")) == diff(
        mine, mine.resolve("base"), mine.resolve("sft")
    )
    assert theirs.resolve(checkpoint.digest[:8]).record == checkpoint
    checked = verify_store(theirs)
    assert checked.differences == ()
    assert set(checked.only_shared) == {record.id for record in mine.records()}
    assert checked.num_bytes == 0
    assert mirror(theirs) == []


def test_what_was_collected_here_is_fetched_when_needed(mine: Store, tmp_path: Path) -> None:
    data = tmp_path / "chats.jsonl"
    make_recipe(mine, data)
    for record in mine.records():
        share(mine, record)
    data.unlink()  # nothing can make it again
    items = collectable(mine, {}, keep=["base"])
    assert {item.loss for item in items} == {"fetched from the shared store when needed"}
    collect(mine, items)
    record = mine.resolve("sft").record
    assert mine.changes(record)
    assert mine.find(record.name, record.fingerprint) == record
    fetch(mine, record)
    assert mine.changes(record) == ()


def test_uncommitted_changes_go_along(mine: Store, theirs: Store) -> None:
    text = b"diff --git a/x b/x\n"
    sha256 = hashlib.sha256(text).hexdigest()
    provenance = Provenance(dirty_diff_sha256=sha256)
    Code(provenance, text).keep_diff(mine.root)
    attempt = mine.attempt(NAME, KEY)
    (attempt.folder / "a").write_text("a")
    share(mine, mine.publish(attempt, Draft(kind="training", version="1", provenance=provenance)))
    mirror(theirs)
    assert diff_file(theirs.root, sha256).read_bytes() == text
    assert verify_store(theirs).differences == ()


# Roots that fail


def test_a_server_that_is_down_is_told_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "TRIES", 1)  # the library below tries several times too
    server = S3Server()
    server.start()
    try:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{server.bucket()}/rufus"
        store = Store(tmp_path / "store", shared=Shared.at(url))
        record = publish(store)
        server.stop()
        for call in (lambda: share(store, record), lambda: mirror(store), lambda: store.find("base", KEY)):
            with pytest.raises(InfrastructureError, match="doesn't answer") as caught:
                call()
            assert caught.value.where == url
            assert "the same command goes on" in str(caught.value)
            assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
        assert store.records() == (record,)
        assert store.changes(record) == ()
        server.start()
        server.make(url.split("/")[2])  # moto keeps its buckets in memory
        assert share(store, record) == record
    finally:
        server.stop()


@pytest.mark.parametrize(("url", "hint"), [("file:///none/x", "mount it"), ("s3://no-such/x", "make the bucket")])
def test_a_root_that_is_not_there_is_told(tmp_path: Path, s3: S3Server, url: str, hint: str) -> None:
    store = Store(tmp_path / "store", shared=Shared.at(url))
    record = publish(store)
    for call in (lambda: mirror(store), lambda: share(store, record)):
        with pytest.raises(InfrastructureError, match=hint) as caught:
            call()
        assert caught.value.where == url


def test_missing_credentials_are_told(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"s3://{s3.bucket()}/x"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(InfrastructureError, match="AWS_PROFILE") as caught:
        mirror(Store(tmp_path / "store", shared=Shared.at(url)))
    assert caught.value.where == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket",
        "/nfs/x",
        "s3://",
        "s3://key:secret@bucket/x",
        "s3://bucket/x?token=secret",
        "nosuch://x/y",
        "ftp://x/y",
    ],
)
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        roots.open_root(url)
    assert "secret" not in str(caught.value)


def test_without_s3fs_the_extra_is_named() -> None:
    code = "import sys; sys.modules['s3fs'] = None; from rufus_core.lineage import roots; roots.open_root('s3://b/x')"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stderr
    assert "ConfigError: s3://b/x: nothing here can read s3:// (pip install 'rufus-air[s3]')" in told


def test_a_root_that_lets_two_create_one_key_is_refused(tmp_path: Path) -> None:
    class Careless(roots.BucketRoot):
        def create(self, key: str, data: bytes) -> bool:
            self.write(key, data)
            return True

    store = Store(tmp_path / "store", shared=Shared(Careless("memory://careless")))
    with pytest.raises(InfrastructureError, match="If-None-Match"):
        share(store, publish(store))
