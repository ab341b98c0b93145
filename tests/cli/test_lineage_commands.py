"""`adopt`, `collect`, `export` and `reproduce` as a user types them, on artifacts of a few bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rufus_core.cli.main import app
from rufus_core.errors import ConfigError, LineageError
from rufus_core.lineage import Record
from rufus_core.rollout.policy import Policy


def rufus(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)


def test_collect_lists_first_and_removes_on_demand(home: Path, checkpoint: Record) -> None:
    listed = rufus("collect", "--home", home)
    assert "Nothing was removed" in listed.stdout
    assert max(map(len, listed.stdout.splitlines())) <= 100
    told = json.loads(rufus("collect", "--home", home, "--json").stdout)
    assert told["freed"] == 0
    assert {item["what"] for item in told["items"]} == {"steps"}
    assert json.loads(rufus("collect", "--home", home, "--yes", "--json").stdout)["freed"] == told["bytes"] > 0
    assert "nothing to collect" in rufus("collect", "--home", home).stdout
    traced = rufus("trace", "coding_rl", "--home", home)
    assert traced.exit_code == 0
    assert "(collected)" in traced.stdout


def test_a_bundle_is_verified_as_such(home: Path, checkpoint: Record, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    assert checkpoint.id in rufus("export", "coding_rl", "--to", bundle, "--home", home).stdout
    assert rufus("verify", "--bundle", bundle).exit_code == 0
    (bundle / "code.json").write_text("[]")
    result = rufus("verify", "--bundle", bundle)
    assert result.exit_code == 1
    assert "code.json: changed" in result.stdout


def test_a_policy_is_adopted_and_what_is_none_is_refused(home: Path, tiny_policy: Policy, tmp_path: Path) -> None:
    tiny_policy.save(tmp_path / "policy")
    told = json.loads(rufus("adopt", tmp_path / "policy", "--as", "mine", "--home", home, "--json").stdout)
    traced = rufus("trace", "mine", "--home", home)
    assert (traced.exit_code, told["digest"][:12] in traced.stdout) == (0, True)
    with pytest.raises(ConfigError, match="no such directory"):
        rufus("adopt", tmp_path / "none", "--as", "mine", "--home", home)
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(LineageError, match="can't load") as caught:
        rufus("adopt", tmp_path / "policy", "--as", "mine", "--home", home)
    assert caught.value.where == str(tmp_path / "policy")


def test_reproduce_exits_with_1_and_names_what_differs_first(home: Path, checkpoint: Record, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no empty folder"):
        rufus("reproduce", "sft", "--home", home, "--scratch", tmp_path)
    with pytest.raises(LineageError, match="fingerprint"):  # the miniature counts data files into it
        rufus("reproduce", "data/sft", "--only", "--home", home)
