import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_core.errors import LineageError
from rufus_core.lineage import Draft, HashCache, Store, digest_tree, fingerprint, trace
from tests.lineage.miniature import make

FINGERPRINT = fingerprint("training", "1", {}, {})
DRAFT = Draft(kind="training", version="1")
NAME = "stages/sft/train"


def publish(store, text="weights", file="model.bin"):
    attempt = store.attempt(NAME, FINGERPRINT)
    (attempt.folder / file).write_text(text)
    return store.publish(attempt, DRAFT)


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b/c", "b/d", "e"]), st.text(max_size=20), max_size=4))
def test_what_is_published_is_found_again(tmp_path_factory, files):
    store = Store(tmp_path_factory.mktemp("home") / "store")
    record = make(store, "base", "base", files)
    assert store.find("base", record.fingerprint) == record
    assert store.get(record.id) == record
    assert store.records() == (record,)
    assert digest_tree(store.path(record)).sha256 == record.digest
    assert set(record.files) == set(files)
    assert store.changes(record) == ()


def test_nothing_is_seen_before_it_is_published(store):
    attempt = store.attempt(NAME, FINGERPRINT)
    (attempt.folder / "model.bin").write_text("half")
    assert store.find(NAME, FINGERPRINT) is None
    assert store.records() == ()
    assert store.names() == []
    store.publish(attempt, DRAFT)
    assert store.find(NAME, FINGERPRINT) is not None
    assert not attempt.home.exists()


def test_another_fingerprint_or_name_is_another_artifact(store):
    publish(store)
    assert store.find(NAME, fingerprint("training", "2", {}, {})) is None
    assert store.find("stages/other/train", FINGERPRINT) is None


@pytest.mark.parametrize("name", ["", "/etc", "../x", "a/../b", "a//b", "a b", "a.b", "a\n", "x" * 121, "a/"])
def test_a_name_can_not_lead_out_of_the_store(store, name):
    with pytest.raises(LineageError):
        store.attempt(name, FINGERPRINT)
    with pytest.raises(LineageError):
        store.find(name, FINGERPRINT)


@pytest.mark.parametrize("bad", ["", "abc", "A" * 64, "../" + "a" * 61, "a" * 65])
def test_a_fingerprint_is_64_hex_digits(store, bad):
    with pytest.raises(LineageError):
        store.attempt(NAME, bad)


SPOILS = {
    "changed": lambda folder: (folder / "model.bin").write_text("WEIGHTS"),
    "missing": lambda folder: (folder / "model.bin").unlink(),
    "added": lambda folder: (folder / "more").touch(),
}


@pytest.mark.parametrize("change", SPOILS)
def test_a_broken_artifact_is_not_found_and_moves_aside_when_it_is_made_again(store, change):
    record = publish(store)
    SPOILS[change](store.path(record))
    assert [each.change for each in store.changes(record)] == [change]
    assert store.find(NAME, FINGERPRINT) is None
    assert store.find(NAME, FINGERPRINT, check=False) == record
    again = publish(store)
    assert store.find(NAME, FINGERPRINT) == again
    (kept,) = (store.root / "replaced").iterdir()
    assert (kept / "record.json").exists()


def test_a_folder_without_a_record_is_no_artifact_and_moves_aside(store):
    record = publish(store)
    (store.path(record) / "record.json").unlink()
    assert store.find(NAME, FINGERPRINT) is None
    publish(store)
    assert store.find(NAME, FINGERPRINT) is not None
    assert len(list((store.root / "replaced").iterdir())) == 1


def test_an_intact_artifact_stays_when_it_is_made_again(store):
    first = publish(store)
    assert publish(store) == first
    assert not (store.root / "replaced").exists()
    assert list((store.root / "attempts").iterdir()) == []


def test_a_different_result_of_the_same_fingerprint_is_kept_aside(store):
    first = publish(store, "one")
    assert publish(store, "two") == first
    (aside,) = (store.root / "replaced").iterdir()
    assert (aside / "model.bin").read_text() == "two"


def test_a_record_that_can_not_be_read_does_not_hide_the_others(store):
    bad, good = publish(store), make(store, "base", "base", {"a": "a"})
    file = store.path(bad) / "record.json"
    file.write_text("{")
    listing = store.listing()
    assert listing.records == (good,)
    assert [fault.where for fault in listing.faults] == [str(file)]
    with pytest.raises(LineageError, match="rufus run") as caught:
        store.find(NAME, FINGERPRINT)
    assert caught.value.where == str(file)
    # What was made meanwhile is published all the same, and the strange record is kept.
    assert publish(store) == store.find(NAME, FINGERPRINT)
    (aside,) = (store.root / "replaced").iterdir()
    assert (aside / "record.json").read_text() == "{"


def test_a_record_of_another_artifact_is_refused(store):
    record, other = publish(store), make(store, "base", "base", {"a": "a"})
    (store.path(record) / "record.json").write_bytes((store.path(other) / "record.json").read_bytes())
    with pytest.raises(LineageError, match="that of base/"):
        store.find(NAME, FINGERPRINT)


def test_the_cache_of_hashes_does_not_hide_a_change(tmp_path):
    store = Store(tmp_path / "store", HashCache(tmp_path / "index.json"))
    record = publish(store)
    assert store.find(NAME, FINGERPRINT) == record
    (store.path(record) / "model.bin").write_text("WEIGHTS")
    fresh = Store(tmp_path / "store", HashCache(tmp_path / "index.json"))
    assert fresh.find(NAME, FINGERPRINT) is None


class FirstSight(HashCache):
    """A cache that misses every change of a file it has seen."""

    def __init__(self, file):
        super().__init__(file)
        self.seen = {}

    def __call__(self, path):
        return self.seen.setdefault(path, super().__call__(path))


def test_find_trusts_the_cache_and_a_trace_never_does(tmp_path):
    store = Store(tmp_path / "store", FirstSight(tmp_path / "index.json"))
    record = publish(store)
    assert store.find(NAME, FINGERPRINT) == record
    (store.path(record) / "model.bin").write_text("WEIGHTS")
    assert store.find(NAME, FINGERPRINT) == record
    assert store.changes(record) != ()
    assert len(trace(store, store.resolve(record.id)).problems) == 1


def test_reading_an_empty_store_makes_no_folder(store):
    assert store.find(NAME, FINGERPRINT) is None
    assert (store.records(), store.names(), store.leftover_attempts()) == ((), [], [])
    assert not store.root.exists()


# Failing disks. The whole suite may run as root, whom permissions don't stop, so the calls fail by injection.


@pytest.mark.parametrize(
    ("code", "said"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission denied")]
)
@pytest.mark.parametrize("call", ["fsync", "replace", "rename"])
def test_a_failing_disk_is_told_in_one_line_and_loses_nothing(store, monkeypatch, code, said, call):
    published = make(store, "base", "base", {"a": "a"})
    attempt = store.attempt(NAME, FINGERPRINT)
    (attempt.folder / "model.bin").write_text("weights")

    def fail(*_arguments, **_options):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(LineageError, match=said) as caught:
            store.publish(attempt, DRAFT)
    assert "\n" not in str(caught.value)
    assert caught.value.where
    assert store.records() == (published,)
    assert store.publish(attempt, DRAFT) == store.find(NAME, FINGERPRINT)  # the attempt can be published later
    assert list(store.find(NAME, FINGERPRINT).files) == ["model.bin"]


def test_a_store_that_can_not_be_written_says_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LineageError, match="--home"):
        Store(tmp_path / "file" / "store").attempt(NAME, FINGERPRINT)


# Several processes

PUBLISH = """
import sys
from pathlib import Path
from rufus_core.lineage import Draft, Store
root, name, fingerprint, text = sys.argv[1:]
store = Store(Path(root))
attempt = store.attempt(name, fingerprint)
(attempt.folder / "model.bin").write_text(text)
print("ready", flush=True)
sys.stdin.readline()
print(store.publish(attempt, Draft(kind="training", version="1")).digest)
"""


def start(store, text):
    return subprocess.Popen(
        [sys.executable, "-c", PUBLISH, str(store.root), NAME, FINGERPRINT, text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize("broken_before", [False, True])
@pytest.mark.parametrize("texts", [("same",) * 4, ("one", "two", "three", "four")])
def test_processes_that_publish_at_once_end_with_the_same_intact_artifact(store, texts, broken_before):
    if broken_before:
        (store.path(publish(store, "old")) / "model.bin").write_text("rotten")
    processes = [start(store, text) for text in texts]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    digests = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * len(texts)
    record = store.find(NAME, FINGERPRINT)
    assert digests == {record.digest}
    assert store.records() == (record,)
    assert store.leftover_attempts() == []


def test_the_attempt_of_a_killed_process_is_left_over_and_that_of_a_living_one_is_not(store):
    process = start(store, "half")
    assert process.stdout.readline() == "ready\n"
    mine = store.attempt(NAME, FINGERPRINT)
    assert store.leftover_attempts() == []
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (left,) = store.leftover_attempts()
    assert (left.name, left.fingerprint) == (NAME, FINGERPRINT)
    assert (left.folder / "model.bin").read_text() == "half"
    assert left.home != mine.home
    left.discard()
    assert store.leftover_attempts() == []
    assert mine.folder.is_dir()


def test_an_attempt_whose_owner_is_not_known_is_left_over(store):
    attempt = store.attempt(NAME, FINGERPRINT)
    (attempt.home / "owner.json").write_text("[]")
    assert store.leftover_attempts() == [attempt]
