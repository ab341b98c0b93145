"""Whole runs with Postgres behind Prefect and MLflow, and a bucket that fails requests."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from mlflow import MlflowClient

from rufus_core.lineage.home import SHARED_ROOT, open_store
from tasks.databases import MLFLOW_DATABASE, PREFECT_DATABASE
from tests.failing_store import FailingStore
from tests.flows.test_recipe import NAMES, Recorder, graph, run, statuses
from tests.postgres import PostgresServer, postgres, postgres_server
from tests.shared_roots import S3Server, s3, s3_server

__all__ = ["postgres", "postgres_server", "s3", "s3_server"]

pytestmark = pytest.mark.slow


@pytest.fixture
def databases(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Names of Prefect's and of MLflow's, both empty."""
    prefect, mlflow = postgres.database(), postgres.database()
    monkeypatch.setenv(PREFECT_DATABASE, postgres.url("postgresql+asyncpg", prefect))
    monkeypatch.setenv(MLFLOW_DATABASE, postgres.url("postgresql", mlflow))
    return prefect, mlflow


def runs_in_mlflow(postgres: PostgresServer, database: str) -> dict[str, str]:
    client = MlflowClient(tracking_uri=postgres.url("postgresql", database))
    found = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    return {one.info.run_name: one.info.status for one in found}


def test_a_run_over_failing_services_ends_in_the_digests_of_a_plain_one(
    tmp_path: Path, s3: S3Server, postgres: PostgresServer, databases: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as plain:
        for variable in (PREFECT_DATABASE, MLFLOW_DATABASE):
            plain.delenv(variable)
        run(tmp_path / "plain", graph())
    monkeypatch.setenv(SHARED_ROOT, f"s3://{s3.bucket()}/rufus")
    with FailingStore(s3.url) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        outcome, seen = run(tmp_path / "served", graph())
        again, _ = run(tmp_path / "second", graph())
        assert store.faults.total() > 0
    assert set(statuses(outcome).values()) == {"completed"}
    assert set(statuses(again).values()) == {"reused"}
    assert seen.warnings == []
    stores = [open_store(tmp_path / name) for name in ("plain", "served", "second")]
    digests = [{record.id: record.digest for record in each.records()} for each in stores]
    assert len(digests[0]) == len(NAMES)
    assert digests[0] == digests[1] == digests[2]
    assert set(runs_in_mlflow(postgres, databases[1]).values()) == {"FINISHED"}
    assert postgres.ask(databases[0], "select count(*) from flow_run where state_type = 'COMPLETED'") == "2"
    assert not [*tmp_path.glob("s*/mlflow/mlflow.db"), *tmp_path.glob("s*/prefect/prefect.db")]


def test_a_postgres_that_dies_in_the_middle_of_a_run_stops_no_training(
    tmp_path: Path, postgres: PostgresServer, databases: tuple[str, str]
) -> None:
    go_on = tmp_path / "go-on"

    training, over = threading.Event(), threading.Event()

    def restart() -> None:
        training.wait()
        postgres.stop()
        postgres.start()
        go_on.touch()
        over.wait()  # a server of the tests ends with the thread that started it

    thread = threading.Thread(target=restart, daemon=True)
    thread.start()
    seen = Recorder(lambda step: training.set() if step == NAMES[-1] else None)
    outcome, _ = run(tmp_path / "home", graph(text="t", wait_for=str(go_on)), seen)
    assert statuses(outcome) == dict.fromkeys(NAMES, "completed")
    assert list((tmp_path / "home" / "mlflow" / "unsent").iterdir()) == []
    assert set(runs_in_mlflow(postgres, databases[1]).values()) == {"FINISHED"}
    assert postgres.ask(databases[0], "select state_type from flow_run") == "COMPLETED"
    postgres.stop()
    over.set()
    thread.join()
