"""A base policy of the user's: a directory is taken over file by file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rufus_core.errors import DataError, LineageError
from rufus_core.lineage.adopt import adopt
from rufus_core.rollout.policy import load_policy
from tests.jobs.miniature import Runner, small_recipe


def _own_base(home: Path, folder: Path) -> Path:
    """A Hugging Face directory, as another program would leave it."""
    return Path(shutil.copytree(Runner(home, small_recipe()).path("base"), folder))


def _taken_over(home: Path, folder: Path) -> Runner:
    return Runner(home, small_recipe(f"base.path={folder}"))


def test_a_directory_of_an_earlier_run_is_a_base(home: Path, tmp_path: Path) -> None:
    folder = _own_base(home, tmp_path / "mine")
    runner = _taken_over(home, folder)
    record = runner.run("base")
    assert "record.json" not in record.external
    assert record.external["model.safetensors"].resolved == str(folder / "model.safetensors")
    ours, theirs = (load_policy(path).model.state_dict() for path in (runner.path("base"), folder))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


def test_an_adopted_checkpoint_is_a_base_by_the_path_that_adopt_prints(home: Path, tmp_path: Path) -> None:
    folder = _own_base(home, tmp_path / "mine")
    store = Runner(home, small_recipe()).store
    files = {path.name: path for path in folder.iterdir() if path.name != "record.json"}
    adopted = adopt(store, "mine", folder, files, lambda _: None)
    runner = _taken_over(home, store.path(adopted))
    assert runner.run("base").digest == adopted.digest


def test_a_base_that_changes_during_a_run_is_not_taken_for_what_it_was(home: Path, tmp_path: Path) -> None:
    folder = _own_base(home, tmp_path / "mine")
    with (folder / "config.json").open("a") as config:
        config.write(" ")  # a directory that no test has used
    runner = _taken_over(home, folder)
    with (folder / "config.json").open("a") as config:
        config.write(" ")
    with pytest.raises(DataError, match="changed after the run had started"):
        runner.run("base")


def test_weights_that_cant_be_read_are_told(home: Path, tmp_path: Path) -> None:
    folder = _own_base(home, tmp_path / "mine")
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(LineageError, match="can't load a policy") as caught:
        _taken_over(home, folder).run("base")
    assert caught.value.where == str(folder)
