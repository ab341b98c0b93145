"""Whole runs of homes that have nothing in common but a bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rufus_core.cli.main import app
from rufus_core.lineage.home import SHARED_ROOT, open_store
from tests.flows.test_recipe import NAMES, graph, jobs_started, run, statuses
from tests.shared_roots import Place, S3Server, s3, s3_server

__all__ = ["s3", "s3_server"]


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(f"s3://{s3.bucket()}/rufus")
    monkeypatch.setenv(SHARED_ROOT, place.url)
    return place


def rufus(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output + (f"error: {done.exception}" if done.exit_code else "")


def test_a_second_home_reuses_all_and_a_third_only_asks(tmp_path: Path, bucket: Place) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    outcome, _ = run(first, graph())
    assert set(statuses(outcome).values()) == {"completed"}
    assert sorted(jobs_started(first)) == sorted(NAMES)

    outcome, seen = run(second, graph())
    assert statuses(outcome) == dict.fromkeys(NAMES, "reused")
    assert seen.started == []
    assert not (second / "started.txt").exists()
    mine, theirs = open_store(first), open_store(second)
    assert {r.id: r.digest for r in mine.records()} == {r.id: r.digest for r in theirs.records()}
    for record in mine.records():
        assert theirs.changes(record) == ()
        assert (theirs.path(record) / "record.json").read_bytes() == (mine.path(record) / "record.json").read_bytes()

    code, told = rufus("trace", NAMES[-1], "--home", str(third), "--json")
    assert code == 0
    assert {node["status"] for node in json.loads(told)["nodes"] if node["fingerprint"]} == {"shared"}
    code, told = rufus("trace", NAMES[-1], "--home", str(third))
    assert "only in the shared store" in told
    assert rufus("impact", "base", "--home", str(third))[0] == 0
    code, told = rufus("verify", "--home", str(third), "--no-prefect")
    assert code == 0
    assert "3 only in the shared store" in told
    assert rufus("verify", "--home", str(third), "--no-prefect", "--shared")[0] == 0
    files = [key for key in bucket.listed() if key.startswith("files/")]
    bucket.flip(files[0])
    code, told = rufus("verify", "--home", str(third), "--no-prefect", "--shared")
    assert code == 1
    assert "differs in the shared store" in told


def test_what_is_made_of_what_another_home_made(tmp_path: Path, bucket: Place) -> None:
    """The second home makes only what is new; its job reads what was fetched."""
    run(tmp_path / "first", graph())
    outcome, _ = run(tmp_path / "second", graph(text="other"))
    assert statuses(outcome) == {"base": "reused", "data/math": "reused", "stages/math/train": "completed"}
    assert jobs_started(tmp_path / "second") == ["stages/math/train"]
    outcome, _ = run(tmp_path / "first", graph(text="other"))
    assert set(statuses(outcome).values()) == {"reused"}


def test_a_home_that_was_full_before_it_shared_shares_all(
    tmp_path: Path, bucket: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as alone:
        alone.delenv(SHARED_ROOT)
        run(tmp_path / "first", graph())
    assert bucket.listed() == []
    outcome, _ = run(tmp_path / "first", graph())
    assert set(statuses(outcome).values()) == {"reused"}
    outcome, _ = run(tmp_path / "second", graph())
    assert set(statuses(outcome).values()) == {"reused"}


def test_a_missing_bucket_is_told_before_anything_runs(tmp_path: Path, bucket: Place) -> None:
    code, told = rufus("trace", "base", "--home", str(tmp_path), "--store", "s3://no-such-bucket/x")
    assert code == 1
    assert "make the bucket" in told
