"""MLflow written anew from the records shows what the run wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from rufus_core.errors import RufusError
from rufus_core.lineage import Record, Store
from rufus_core.lineage.aliases import Aliases
from tasks import servers
from tasks.rebuild import rebuild_mlflow
from tasks.tracking import Tracker
from tests.tasks.tracked import client_of, made_and_tracked, refuse, shown


def run_once(home: Path) -> dict[str, Record]:
    tracker = Tracker(home, "tiny", refuse)
    records = made_and_tracked(home, tracker)
    checkpoint = records["stages/math/checkpoint"]
    for alias in ("math", "tiny"):
        assert Aliases(home / "store").point(alias, checkpoint, "tiny", "a test")
        tracker.aliased(alias, checkpoint, "tiny")
    tracker.run_finished("FINISHED", {})
    return records


def test_a_rebuild_shows_what_the_run_wrote(tmp_path: Path) -> None:
    records = run_once(tmp_path)
    before = shown(client_of(tmp_path))
    assert set(before) >= {record.id for record in records.values()} | {"tiny@math", "tiny@tiny"}
    again = tmp_path / "again"
    again.mkdir()
    (again / "store").symlink_to(tmp_path / "store")
    made = rebuild_mlflow(again, "tiny", None, refuse)
    assert (made.num_records, made.kept) == (len(records), None)
    assert shown(client_of(again)) == before


def test_the_old_database_is_kept_and_an_unreadable_record_hides_no_other(tmp_path: Path) -> None:
    records = run_once(tmp_path)
    database = tmp_path / "mlflow" / "mlflow.db"
    database.write_bytes(b"not a database")
    store = Store(tmp_path / "store")
    (store.path(records["scores/math"]) / "record.json").write_text("{}")
    warnings: list[str] = []
    made = rebuild_mlflow(tmp_path, "tiny", None, warnings.append)
    assert made.num_records == len(records) - 1
    assert made.kept is not None
    assert made.kept.read_bytes() == b"not a database"
    assert len(warnings) == 1
    assert "scores.math" in warnings[0]
    assert database.read_bytes().startswith(b"SQLite")
    assert not list(database.parent.glob("*rebuilding*"))


def test_it_is_refused_while_a_run_writes(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path, "tiny", refuse)
    tracker.run_started("living", {})
    with pytest.raises(RufusError, match="a run writes to MLflow now"):
        rebuild_mlflow(tmp_path, "tiny", None, refuse)
    tracker.run_finished("FINISHED", {})
    rebuild_mlflow(tmp_path, "tiny", None, refuse)


@pytest.mark.slow
def test_an_empty_server_is_filled_and_one_with_other_runs_is_refused(tmp_path: Path) -> None:
    records = run_once(tmp_path)
    before = shown(client_of(tmp_path))
    with servers.mlflow_server(tmp_path / "other", servers.free_port()) as server:
        server.ready()
        rebuild_mlflow(tmp_path, "tiny", server.url, refuse)
        rebuild_mlflow(tmp_path, "tiny", server.url, refuse)  # as after one that was killed
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=server.url, registry_uri=server.url)
        assert shown(client) == before
        client.create_run(client.get_experiment_by_name("tiny").experiment_id)
        with pytest.raises(RufusError, match="has runs of experiment tiny that the records don't know"):
            rebuild_mlflow(tmp_path, "tiny", server.url, refuse)
    assert len(records) == 6
