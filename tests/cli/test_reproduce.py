"""`rufus reproduce` as a user types it: a checkpoint made anew by real jobs, in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from rufus_core.lineage import Record, Store
from tests.cli.test_bad_stores import files, rufus
from tests.jobs.miniature import Runner, small_recipe

pytestmark = pytest.mark.slow

SFT = ("base", "data/sft", "stages/sft/train", "stages/sft/checkpoint")


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations of the user's."""
    file = tmp_path_factory.mktemp("data") / "chats.jsonl"
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    file.write_text(json.dumps({"messages": said}) + "\n")
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, chats: Path) -> Path:
    """A home in which SFT was trained, also on those conversations."""
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("home")
    mine = f"stages.sft.data.sources.mine={{path: {chats}, category: general_chat}}"
    Runner(home, small_recipe(mine)).run("stages/sft/checkpoint")
    return home


def record(home: Path, name: str) -> Record:
    (found,) = Store(home / "store").records(name)
    return found


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if not line.startswith("warning: ")]


def test_a_checkpoint_that_comes_out_the_same_is_called_identical_and_exits_with_0(trained: Path) -> None:
    before = files(trained)
    done = rufus(trained, "reproduce", "sft")
    assert (done.returncode, done.stderr) == (0, "")
    *steps, verdict = said(done)
    assert [line.split()[:3] for line in steps] == [
        [f"{number}/4", record(trained, name).id, "bit-identical"] for number, name in enumerate(SFT, start=1)
    ]
    assert verdict == f"{record(trained, SFT[-1]).id}: bit-identical (4 artifacts made anew)"
    assert files(trained) == before


def test_a_data_file_that_changed_is_named_and_exits_with_1(trained: Path, chats: Path) -> None:
    known = next(iter(record(trained, "data/sft").external.values())).sha256
    before, text = files(trained), chats.read_text()
    chats.write_text(text.replace("hello", "good day"))
    try:
        done = rufus(trained, "reproduce", "sft")
    finally:
        chats.write_text(text)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"error: {chats}: this data file changed since it was read (put back the file of sha256 {known[:12]})\n"
    )
    assert not any("data/sft" in line for line in said(done))
    assert files(trained) == before
