"""Stores that are broken, of another release, of a wrong clock, read-only or full, as a user meets them: real commands
on real file systems. What a job does with them is in tests/jobs/test_protocol.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rufus_core.lineage import Record, Store
from rufus_core.lineage.newest import mark_published
from rufus_core.lineage.record import dump_sealed, read_record
from tests.jobs.miniature import small_overrides
from tests.lineage.miniature import make, make_stage

RUFUS = str(Path(sys.executable).with_name("rufus"))


def rufus(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    env = {**kept, "COLUMNS": "200", "RUFUS_HOME": str(home)}
    return subprocess.run([RUFUS, *map(str, words)], capture_output=True, text=True, env=env)


@contextmanager
def mounted(place: Path, *words: str) -> Iterator[None]:
    """A file system at a folder; whoever may not mount one skips the test."""
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    done = subprocess.run(["mount", *words, str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this machine permits no mounts: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def files(folder: Path) -> dict[str, bytes]:
    """What a folder holds, but for the locks, which reading may take."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "locks" not in path.parts
    }


def sealed(text: str, **changes: Any) -> str:
    content = json.loads(text)
    del content["seal"]
    return dump_sealed({**content, **changes})


UNREADABLE: dict[str, tuple[Callable[[str], str], str]] = {
    "garbage": (lambda text: "\0\1 garbage", "this record is not JSON"),
    "empty": (lambda text: "", "this record is not JSON"),
    "truncated": (lambda text: text[: len(text) // 2], "this record is not JSON"),
    "altered": (lambda text: text.replace('"seed": 7', '"seed": 8'), "this record was altered after it was written"),
    "of a later release": (
        lambda text: sealed(text, schema_version=3),
        "this record has schema version 3, and this release reads versions 1 to 2",
    ),
}


@pytest.mark.parametrize("how", UNREADABLE)
def test_an_unreadable_record_is_named_with_what_to_do_and_hides_no_other(
    home: Path, store: Store, checkpoint: Record, how: str
) -> None:
    spoil, said = UNREADABLE[how]
    file = store.path(checkpoint) / "record.json"
    file.write_text(spoil(file.read_text()))
    before = files(home)
    traced = rufus(home, "trace", "coding_rl")
    assert (traced.returncode, traced.stdout) == (1, "")
    assert traced.stderr.startswith(f"error: {file}: {said} (")
    assert "move that folder out of the store; `rufus run` then makes the artifact again" in traced.stderr
    assert traced.stderr.count("\n") == 1
    verified = rufus(home, "verify", "--no-prefect")
    assert verified.returncode == 1
    (line,) = (line for line in verified.stdout.splitlines() if str(file) in line)
    assert line.startswith(f"{file}: {said}")
    assert "\n1 differ" in verified.stdout
    assert rufus(home, "trace", "sft").returncode == 0
    assert files(home) == before


def test_a_record_of_the_first_version_is_read_traced_and_verified(
    home: Path, store: Store, checkpoint: Record
) -> None:
    """Version 1 had no image in its provenance."""
    file = store.path(checkpoint) / "record.json"
    provenance = json.loads(file.read_text())["provenance"]
    del provenance["image"]
    file.write_text(sealed(file.read_text(), schema_version=1, provenance=provenance))
    traced = rufus(home, "trace", "coding_rl", "--json")
    assert (traced.returncode, traced.stderr) == (0, "")
    assert json.loads(traced.stdout)["root"] == checkpoint.id
    assert rufus(home, "verify", "--no-prefect").returncode == 0


def test_a_folder_that_is_gone_is_named_by_what_was_made_from_it(home: Path, store: Store, checkpoint: Record) -> None:
    sft = store.resolve("sft").record
    store.path(sft).rename(home.parent / "elsewhere")
    traced = rufus(home, "trace", "coding_rl")
    assert traced.returncode == 1
    assert sft.id in traced.stderr
    verified = rufus(home, "verify", "--no-prefect")
    assert verified.returncode == 1
    told = [line for line in verified.stdout.splitlines() if f"policy {sft.id} is not in the store" in line]
    assert len(told) == 2  # the data and the training of the next stage
    assert all("rufus run" in line for line in told)


def test_a_file_that_is_gone_is_named(home: Path, store: Store, checkpoint: Record) -> None:
    (store.path(checkpoint) / "config.json").unlink()
    traced = rufus(home, "trace", "coding_rl")
    assert traced.returncode == 1
    assert traced.stderr == f"{checkpoint.id}: differs from its record: config.json missing\n"
    verified = rufus(home, "verify", "coding_rl", "--no-prefect")
    assert verified.returncode == 1
    assert f"{checkpoint.id}: differs from its record: config.json missing (rufus run)" in verified.stdout


def test_a_checkpoint_of_the_future_stays_the_newest_and_says_so(
    home: Path, store: Store, checkpoint: Record, tmp_path: Path
) -> None:
    file = store.path(checkpoint) / "record.json"
    file.write_text(sealed(file.read_text(), published="2999-01-01T00:00:00Z"))
    mark_published(store.root, read_record(file))
    later = make_stage(store, "coding_rl", store.resolve("sft").record, tmp_path / "chats.jsonl", seed=8)
    traced = rufus(home, "trace", "coding_rl", "--json")
    assert json.loads(traced.stdout)["root"] == checkpoint.id
    assert traced.returncode == 1
    assert traced.stderr.startswith(
        f"{checkpoint.id} says that it was published on 2999-01-01 00:00 UTC, which is yet to come: a clock"
    )
    named = rufus(home, "trace", later.digest[:12], "--json")
    assert (named.returncode, named.stderr) == (0, "")
    assert json.loads(named.stdout)["root"] == later.id
    only = rufus(home, "plan", "--only", "if_rl", "--steps")
    assert f"warning: {checkpoint.id} says that it was published on 2999-01-01" in only.stderr
    assert only.returncode == 0


def test_a_read_only_home_answers_and_refuses_in_one_line(
    home: Path, store: Store, checkpoint: Record, tmp_path: Path
) -> None:
    make(store, "base", "base", {"model.bin": "superseded"}, seed=9)
    before = files(home)
    with mounted(home, "--bind", "-o", "ro", str(home)):
        if os.access(home, os.W_OK):
            subprocess.run(["mount", "-o", "remount,ro,bind", str(home)], check=True)
        for words in (["trace", "coding_rl"], ["verify", "coding_rl", "--no-prefect"], ["plan"], ["table"]):
            assert rufus(home, *words).returncode == 0, words
        for words in (["run", "--until", "base"], ["collect", "--yes"]):
            refused = rufus(home, *words)
            assert refused.returncode == 1, words
            assert refused.stderr.startswith(f"error: {home}"), words
            assert "the file system is read-only: choose another home with --home or RUFUS_HOME" in refused.stderr
            assert refused.stderr.count("\n") == 1, words
    assert files(home) == before


@pytest.mark.slow
def test_a_full_store_stops_a_run_with_what_to_do_and_with_space_the_same_command_goes_on(home: Path) -> None:
    store = Store(home / "store")
    store.root.mkdir(parents=True)
    words = ["run", "--until", "base", *(word for change in small_overrides() for word in ("--set", change))]
    with mounted(store.root, "-t", "tmpfs", "-o", "size=30m", "tmpfs"):
        filler = store.root / "filler"
        filler.write_bytes(bytes((30 << 20) - 200_000))
        stopped = rufus(home, *words)
        assert stopped.returncode == 1, stopped.stdout
        assert stopped.stderr.count("\n") == 1, stopped.stderr
        assert "free some space and run the same command again" in stopped.stderr
        assert store.root.name in stopped.stderr or str(home) in stopped.stderr
        assert "base" not in {record.name for record in store.records()}
        filler.unlink()
        went_on = rufus(home, *words)
        assert (went_on.returncode, went_on.stderr) == (0, "")
        assert [store.changes(record) for record in store.records("base")] == [()]
        assert list((store.root / "attempts").iterdir()) == []
