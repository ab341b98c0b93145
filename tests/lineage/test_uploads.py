"""Uploads to S3 that were killed, met others or were left behind, and an object store that fails requests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_core.errors import InfrastructureError, LineageError
from rufus_core.lineage import Store, roots, s3_root
from rufus_core.lineage.shared import Shared
from rufus_core.lineage.sharing import fetch, mirror, share
from rufus_core.lineage.verify import verify_store
from tests.failing_store import FailingStore, Fault
from tests.lineage.miniature import make, make_recipe
from tests.shared_roots import ENVIRONMENT, S3Server

ROOT = Path(__file__).parents[2]
PART = 5 * 2**20  # the smallest that S3 takes
KEY = "files/ab/big"


@pytest.fixture
def watched(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingStore]:
    """A proxy that only watches."""
    with FailingStore(s3.url, rate=0.0) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        yield store


@pytest.fixture
def url(s3: S3Server) -> str:
    return f"s3://{s3.bucket()}/team/rufus"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_root, "PART_BYTES", PART)
    monkeypatch.setattr(s3_root, "ABANDONED", timedelta(days=100 * 365))  # moto says that all began in 2010
    monkeypatch.setattr(roots, "WAIT_SECONDS", 0.01)


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Four parts, of which the last is short."""
    file = tmp_path / "big"
    file.write_bytes(b"".join(bytes([number]) * PART for number in range(3)) + b"end")
    return file


def sent_parts(store: FailingStore) -> int:
    return sum(method == "PUT" and "partNumber=" in path for method, path in store.requests)


def open_uploads(root: s3_root.S3Root) -> list[str]:
    return [upload["Key"] for upload, _ in root._listed("")]


def put_and_die(url: str, file: Path, after: int) -> None:
    """Put a file from another process, which is killed before it sends more than `after` parts, one at a time."""
    code = f"""
import os, signal, sys
from pathlib import Path
from rufus_core.lineage import roots, s3_root
s3_root.PART_BYTES, s3_root.SENT_AT_ONCE, count = {PART}, 1, 0
call = s3_root.S3Root._call
def counted(self, method, **words):
    global count
    count += method == "upload_part"
    if count > {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    return call(self, method, **words)
s3_root.S3Root._call = counted
roots.open_root(sys.argv[1]).put({KEY!r}, Path(sys.argv[2]))
"""
    done = subprocess.run([sys.executable, "-c", code, url, str(file)], env=dict(os.environ), cwd=ROOT)
    assert done.returncode == -signal.SIGKILL


def test_an_upload_that_was_killed_goes_on_with_the_parts_that_lack(watched: FailingStore, url: str, big: Path) -> None:
    put_and_die(url, big, after=3)
    assert sent_parts(watched) == 3
    root = roots.open_root(url)
    assert root.size(KEY) is None
    root.put(KEY, big)
    assert sent_parts(watched) == 4
    assert b"".join(root.chunks(KEY)) == big.read_bytes()
    assert open_uploads(root) == []


def test_parts_of_other_bytes_are_sent_again(watched: FailingStore, url: str, big: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    data = bytearray(big.read_bytes())
    data[PART + 1] ^= 1
    other.write_bytes(data)
    put_and_die(url, other, after=3)
    root = roots.open_root(url)
    root.put(KEY, big)
    assert sent_parts(watched) == 3 + 2
    assert b"".join(root.chunks(KEY)) == big.read_bytes()


def test_an_upload_that_somebody_else_ended_is_whole(
    watched: FailingStore, url: str, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one ends it between our last part and our end."""
    root = roots.open_root(url)
    call = s3_root.S3Root._call

    def meanwhile(self: s3_root.S3Root, method: str, **words: object) -> s3_root.Answer:
        if method == "complete_multipart_upload" and self is root:
            roots.open_root(url).put(KEY, big)
        return call(self, method, **words)

    monkeypatch.setattr(s3_root.S3Root, "_call", meanwhile)
    root.put(KEY, big)
    assert sent_parts(watched) == 4
    assert b"".join(root.chunks(KEY)) == big.read_bytes()
    assert open_uploads(root) == []


def test_an_upload_that_is_aborted_again_and_again_is_told(
    s3: S3Server, url: str, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = s3_root.S3Root._call

    def aborted(self: s3_root.S3Root, method: str, **words: object) -> s3_root.Answer:
        if method == "upload_part":
            self._abort({"Key": words["Key"], "UploadId": words["UploadId"]})
            raise FileNotFoundError("NoSuchUpload")  # as S3 answers; moto fails with 500
        return call(self, method, **words)

    monkeypatch.setattr(s3_root.S3Root, "_call", aborted)
    with pytest.raises(InfrastructureError, match="uploads of files/ab/big went away") as told:
        roots.open_root(url).put(KEY, big)
    assert told.value.where == url


def test_what_others_left_behind_long_ago_is_aborted(
    s3: S3Server, url: str, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_and_die(url, big, after=1)
    root = roots.open_root(url)
    root.put("files/cd/other", big)
    assert open_uploads(root) == [f"team/rufus/{KEY}"]  # it is young
    monkeypatch.setattr(s3_root, "ABANDONED", timedelta(days=7))
    root = roots.open_root(url)
    root.put("files/ef/other", big)
    assert open_uploads(root) == []


def test_a_file_that_comes_altered_is_read_again_and_told_if_it_stays_so(
    tmp_path: Path, s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = (Store(tmp_path / name, shared=Shared.at(url)) for name in ("mine", "theirs"))
    record = share(mine, make(mine, "base", "base", {"a": "weights"}))
    assert theirs.find("base", record.fingerprint) == record
    flips = [True, False]
    chunks = roots.BucketRoot.chunks

    def altered(self: roots.BucketRoot, key: str) -> Iterator[bytes]:
        flip = flips.pop(0)
        return (bytes([chunk[0] ^ flip]) + chunk[1:] for chunk in chunks(self, key))

    monkeypatch.setattr(roots.BucketRoot, "chunks", altered)
    fetch(theirs, record)
    assert theirs.changes(record) == ()
    flips += [True, True]
    (theirs.path(record) / "a").unlink()
    with pytest.raises(LineageError, match="not as recorded"):
        fetch(theirs, record)


def test_an_end_whose_answer_is_lost_is_the_end(watched: FailingStore, url: str, big: Path) -> None:
    root = roots.open_root(url)
    watched.fail_next("POST", "uploadId=", Fault.RESET_AFTER)
    root.put(KEY, big)
    assert watched.faults.total() == 1
    assert sent_parts(watched) == 4
    assert b"".join(root.chunks(KEY)) == big.read_bytes()


# An object store that fails a share of the requests


@pytest.mark.parametrize("kind", Fault)
def test_every_fault_is_tried_again(
    s3: S3Server, url: str, big: Path, kind: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FailingStore(s3.url, rate=0.3, kinds=(kind,)) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        root = roots.open_root(url)
        root.put(KEY, big)
        assert b"".join(root.chunks(KEY)) == big.read_bytes()
        assert root.create("records/one", b"mine")
        assert not root.create("records/one", b"theirs")
        root.write("leases/one", b"1")
        assert (root.read("leases/one"), root.size(KEY), root.read("none")) == (b"1", big.stat().st_size, None)
        assert root.keys("records") == ["records/one"]
        assert root.read_all(["records/one", "none"]) == {"records/one": b"mine"}
        assert store.faults[kind] > 0


@settings(max_examples=3)
@given(seed=st.integers(0, 1000))
def test_a_recipe_goes_there_and_comes_back_whatever_fails(
    s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("recipe")
    with pytest.MonkeyPatch.context() as patch, FailingStore(s3_server.url, rate=0.05, seed=seed) as store:
        patch.setenv("AWS_ENDPOINT_URL", store.url)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        url = f"s3://{s3_server.bucket()}/rufus"
        mine, theirs = (Store(folder / name, shared=Shared.at(url)) for name in ("mine", "theirs"))
        make_recipe(mine, folder / "chats.jsonl")
        for record in mine.records():
            assert share(mine, record) == record
        assert mirror(theirs) == []
        assert theirs.records() == mine.records()
        for record in theirs.records():
            fetch(theirs, record)
            assert theirs.changes(record) == ()
        assert verify_store(theirs, shared=True).differences == ()
        assert store.faults.total() > 0
