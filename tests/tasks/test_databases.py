"""Prefect and MLflow in a real Postgres: first uses at once, outages, and words for what can't be opened."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.orchestrator import PrefectOrchestrator
from rufus_core.errors import ConfigError, InfrastructureError, RufusError
from tasks import replay, servers
from tasks.databases import MLFLOW_DATABASE, MLFLOW_SERVER, PREFECT_DATABASE, check_databases
from tasks.rebuild import rebuild_mlflow
from tasks.tracking import Tracker
from tests.postgres import PASSWORD, PostgresServer, postgres, postgres_server
from tests.tasks.tracked import client_of, made_and_tracked, refuse, shown

__all__ = ["postgres", "postgres_server"]


@pytest.fixture
def mlflow(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """A client of an empty database, which runs write to from now on."""
    url = postgres.url("postgresql", postgres.database())
    monkeypatch.setenv(MLFLOW_DATABASE, url)
    return MlflowClient(tracking_uri=url, registry_uri=url)


def track(home: Path) -> None:
    tracker = Tracker(home, "tiny", refuse)
    made_and_tracked(home, tracker)
    tracker.run_finished("FINISHED", {})


def test_a_run_and_a_rebuild_write_the_same_into_postgres(
    tmp_path: Path, mlflow: MlflowClient, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    track(tmp_path)
    assert not (tmp_path / "mlflow" / "mlflow.db").exists()
    assert PrefectOrchestrator().verify_pages(tmp_path, None, prefect=False).differences == ()
    before = shown(mlflow)

    url = postgres.url("postgresql", postgres.database())
    monkeypatch.setenv(MLFLOW_DATABASE, url)
    made = PrefectOrchestrator().rebuild_mlflow(tmp_path, "tiny", refuse)
    assert PASSWORD not in made.place
    rebuilt = MlflowClient(tracking_uri=url, registry_uri=url)
    assert shown(rebuilt) == before
    rebuild_mlflow(tmp_path, "tiny", url, refuse)  # as after one that was killed
    assert shown(rebuilt) == before
    rebuilt.create_run(rebuilt.get_experiment_by_name("tiny").experiment_id)
    with pytest.raises(RufusError, match="has runs of experiment tiny that the records don't know") as told:
        rebuild_mlflow(tmp_path, "tiny", url, refuse)
    assert PASSWORD not in str(told.value)


def test_homes_that_open_an_empty_postgres_at_once_have_one_experiment(tmp_path: Path, mlflow: MlflowClient) -> None:
    barrier = threading.Barrier(3)

    def work(home: Path) -> None:
        barrier.wait()
        track(home)

    homes = [tmp_path / name for name in ("a", "b", "c")]
    threads = [threading.Thread(target=work, args=(home,)) for home in homes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [list((home / "mlflow" / "unsent").iterdir()) for home in homes] == [[], [], []]
    experiment = mlflow.get_experiment_by_name("tiny")
    runs = mlflow.search_runs([experiment.experiment_id])
    assert len([run for run in runs if run.info.run_name == "tiny on cpu"]) == 3
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_postgres_that_dies_while_a_run_goes_on_has_every_entry_in_the_end(
    tmp_path: Path, mlflow: MlflowClient, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "RETRY_SECONDS", 0.01)
    out = threading.Event()
    tracker = Tracker(tmp_path, "tiny", lambda _: out.set())
    tracker.run_started("run", {})
    tracker.step_started("a", "A", {})
    tracker.progressed("a", 1, {"loss": 2.0})
    postgres.stop()
    tracker.step_finished("a", "FINISHED")
    assert out.wait(60)
    postgres.start()
    tracker.run_finished("FINISHED", {})
    assert list((tmp_path / "mlflow" / "unsent").iterdir()) == []
    runs = mlflow.search_runs([mlflow.get_experiment_by_name("tiny").experiment_id])
    assert {run.info.run_name: run.info.status for run in runs} == {"run": "FINISHED", "A": "FINISHED"}
    assert next(run.data.metrics for run in runs if run.info.run_name == "A") == {"loss": 2.0}


def test_what_postgres_missed_is_sent_by_the_next_run(
    tmp_path: Path, mlflow: MlflowClient, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.delenv(MLFLOW_DATABASE)
        track(tmp_path / "undisturbed")
        undisturbed = client_of(tmp_path / "undisturbed")
    postgres.stop()
    warnings: list[str] = []
    tracker = Tracker(tmp_path / "home", "tiny", warnings.append)
    made_and_tracked(tmp_path / "home", tracker)
    tracker.run_finished("FINISHED", {})
    assert len(warnings) == 1
    assert PASSWORD not in warnings[0]
    postgres.start()
    later = Tracker(tmp_path / "home", "tiny", refuse)
    later.run_started("later", {})
    later.run_finished("FINISHED", {})
    assert list((tmp_path / "home" / "mlflow" / "unsent").iterdir()) == []
    assert _without_keys(shown(mlflow)) == _without_keys(shown(undisturbed))


def _without_keys(shows: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    return {name: {k: v for k, v in each.items() if k != "key"} for name, each in shows.items()}


@pytest.mark.slow
def test_servers_that_open_an_empty_postgres_at_once_both_serve(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFECT_DATABASE, postgres.url("postgresql+asyncpg", postgres.database()))
    failed: list[Exception] = []

    def serve(home: Path) -> None:
        try:
            with servers.prefect_server(home, servers.free_port()) as server:
                server.ready()
        except InfrastructureError as error:
            failed.append(error)

    threads = [threading.Thread(target=serve, args=(tmp_path / name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert not list(tmp_path.rglob("prefect.db"))


@pytest.mark.slow
def test_a_run_writes_to_an_mlflow_server_over_postgres(
    tmp_path: Path, mlflow: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers.mlflow_server(tmp_path / "served", servers.free_port()) as server:
        server.ready()
        monkeypatch.setenv(MLFLOW_SERVER, server.url)
        track(tmp_path / "home")
        assert PrefectOrchestrator().verify_pages(tmp_path / "home", None, prefect=False).differences == ()
    assert "checkpoint" in str(shown(mlflow))
    assert not list(tmp_path.rglob("mlflow.db"))


def test_a_database_that_is_out_is_told_before_anything_runs(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFECT_DATABASE, postgres.url("postgresql+asyncpg", "none"))
    with pytest.raises(InfrastructureError, match="doesn't answer") as told, servers.prefect_server(tmp_path, 1):
        raise AssertionError("it started")
    assert PASSWORD not in str(told.value)


@pytest.mark.parametrize(
    ("variable", "url", "hint"),
    [
        (PREFECT_DATABASE, "postgresql://rufus@localhost/x", r"begin it with postgresql\+asyncpg://"),
        (MLFLOW_DATABASE, "postgresql+asyncpg://rufus@localhost/x", "begin it with postgresql://"),
        (MLFLOW_SERVER, "postgres://rufus@localhost/x", "begin it with postgresql://"),
    ],
)
def test_a_url_that_needs_another_driver_is_refused(
    variable: str, url: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, url)
    with pytest.raises(ConfigError, match=hint) as told:
        check_databases()
    assert told.value.where == variable
