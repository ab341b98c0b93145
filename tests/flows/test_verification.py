"""`rufus verify` after a real run: Prefect's own server and MLflow's database against the records."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rufus_core.cli.main import app
from tasks import servers
from tests.flows.test_recipe import NAMES, graph, run


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    run(folder, graph())
    return folder


@pytest.fixture
def api(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with servers.prefect_server(home, servers.free_port()) as running:
        running.ready()
        monkeypatch.setenv("PREFECT_API_URL", f"{running.url}/api")
        yield


def verify(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", "--home", str(home), *arguments])


def test_a_finished_run_agrees_with_its_pages_until_a_record_is_gone(home: Path, api: None, tmp_path: Path) -> None:
    result = verify(home, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["differences"], told["not_checked"], told["artifacts"]) == (0, [], [], 3)
    (folder,) = (home / "store" / "artifacts" / "stages.math.train").iterdir()
    shutil.move(folder, tmp_path / "aside")
    result = verify(home)
    assert result.exit_code == 1
    assert "Prefect task run Math: train: says Completed, and no record has its digest" in result.stdout
    shutil.move(tmp_path / "aside", folder)
    assert verify(home).exit_code == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE logged_model_metrics SET metric_value = 7", "x is 1, and MLflow shows 7"),
        ("UPDATE logged_model_tags SET tag_value = 'other' WHERE tag_key = 'rufus.digest'", "MLflow has no model"),
        ("DELETE FROM inputs", "made from other inputs"),
    ],
)
def test_mlflow_s_numbers_and_checkpoints_are_compared(home: Path, tmp_path: Path, change: str, said: str) -> None:
    copy = shutil.copytree(home, tmp_path / "copy")
    with closing(sqlite3.connect(copy / "mlflow" / "mlflow.db")) as connection, connection:
        assert connection.execute(change).rowcount > 0
    result = verify(copy, "--no-prefect")
    assert result.exit_code == 1
    assert said in result.stdout
    assert "not checked: Prefect" in result.stdout


def test_only_what_is_named_is_compared(home: Path) -> None:
    (file,) = (home / "store" / "artifacts" / "data.math").glob("*/text")
    intact = file.read_bytes()
    file.write_bytes(b"x" + intact)
    assert verify(home, NAMES[0], "--no-prefect").exit_code == 0
    result = verify(home, NAMES[1], "--no-prefect")
    file.write_bytes(intact)
    assert result.exit_code == 1
    assert "text changed (rufus run)" in result.stdout


def test_a_home_without_pages_says_that_they_were_not_checked(tmp_path: Path) -> None:
    result = verify(tmp_path)
    assert result.exit_code == 0
    assert "not checked: MLflow" in result.stdout
    assert "not checked: Prefect" in result.stdout
