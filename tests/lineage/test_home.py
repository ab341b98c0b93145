from pathlib import Path

import pytest

from rufus_core.errors import ConfigError, DataError
from rufus_core.lineage import external_file, rufus_home


def test_the_option_then_the_variable_then_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUFUS_HOME", str(tmp_path / "variable"))
    assert rufus_home(Path("option")) == tmp_path / "option"
    assert rufus_home() == tmp_path / "variable"
    monkeypatch.setenv("RUFUS_HOME", "")
    assert rufus_home() == tmp_path / ".rufus"


def test_a_tilde_is_the_user_s_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rufus_home(Path("~/runs")) == tmp_path / "runs"


def test_the_tilde_of_a_user_who_is_not_there_is_told():
    with pytest.raises(ConfigError, match="no user 'nosuchuser' has a home here"):
        rufus_home(Path("~nosuchuser/runs"))


@pytest.mark.parametrize("below", ["", "sub/folder"])
def test_a_file_is_no_home(tmp_path, below):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match="a file is where runs should live") as caught:
        rufus_home(file / below)
    assert caught.value.where == str(file)


def test_a_data_file_that_can_not_be_read_is_told_by_its_path(tmp_path):
    for bad in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(DataError) as caught:
            external_file(str(bad))
        assert str(caught.value).startswith(str(bad))
