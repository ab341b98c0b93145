"""What `rufus run`, `rufus ui` and `rufus doctor` reach Prefect and MLflow through."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx

from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.lineage.home import open_store
from rufus_core.ports.orchestration import Check, Deployed, Difference, PagesCheck, Rebuilt, RunObserver, RunOutcome
from rufus_core.recipe.step import Step
from rufus_core.settings import Recipe
from tasks import databases, servers

ANSWER_SECONDS = 30.0  # a loaded server is slow, and not gone


class PrefectOrchestrator:
    """Runs a recipe as a Prefect flow, tracked in MLflow.

    `command` carries out a job document; by default a fork of a warm server does.
    """

    def __init__(self, command: tuple[str, ...] | None = None) -> None:
        self._command = command

    def run(self, recipe: Recipe, graph: Sequence[Step], home: Path, observer: RunObserver) -> RunOutcome:
        databases.check_databases()
        with _prefect_api(home) as url:
            # Prefect reads its settings when it is first imported; importing overlaps with the server's start.
            from prefect.settings import (
                PREFECT_API_URL,
                PREFECT_CLIENT_RETRY_EXTRA_CODES,
                PREFECT_HOME,
                temporary_settings,
            )

            from flows.orphans import end_orphans
            from flows.recorded import send_events
            from flows.run import run_recipe

            settings = {
                PREFECT_API_URL: url(),
                PREFECT_HOME: home / "prefect",
                PREFECT_CLIENT_RETRY_EXTRA_CODES: {500},  # its answer while its Postgres can't be connected to
            }
            with temporary_settings(settings):
                send_events()  # else they would follow what this process has open to an earlier server
                try:
                    end_orphans()
                    return run_recipe(recipe, graph, home, observer, self._command)
                except httpx.TransportError as error:
                    hint = "finished steps are kept, and jobs live on: the same command goes on"
                    raise InfrastructureError(f"the Prefect server went away: {error}", hint=hint) from error
                finally:  # what still waits (task states travel as events) is sent before the server goes
                    send_events()

    @contextmanager
    def serve_pages(self, home: Path, prefect_port: int, mlflow_port: int) -> Iterator[Mapping[str, str]]:
        databases.check_databases()
        servers.require_port(prefect_port, "--prefect-port")
        servers.require_port(mlflow_port, "--mlflow-port")
        with servers.prefect_server(home, prefect_port) as prefect, servers.mlflow_server(home, mlflow_port) as mlflow:
            prefect.ready()
            mlflow.ready()
            yield {"Prefect (flows, steps)": prefect.url, "MLflow (curves, checkpoints)": mlflow.url}

    def verify_pages(self, home: Path, only: Collection[str] | None, prefect: bool) -> PagesCheck:
        databases.check_databases()
        store = open_store(home)
        differences: list[Difference] = []
        not_checked = []
        if databases.mlflow_elsewhere() or databases.home_database(home / "mlflow").exists():
            from tasks.verification import verify_mlflow

            differences += verify_mlflow(home, store.records(), only)
        else:
            not_checked.append("MLflow: this home has no mlflow.db")
        if not prefect:
            not_checked.append("Prefect: not asked for")
        elif not (
            os.environ.get("PREFECT_API_URL")
            or databases.prefect_database()
            or (home / "prefect" / "prefect.db").exists()
        ):
            not_checked.append("Prefect: this home has no prefect.db")
        else:
            with _prefect_api(home) as url:
                from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

                from flows.verification import known_digests, verify_prefect

                with temporary_settings({PREFECT_API_URL: url(), PREFECT_HOME: home / "prefect"}):
                    differences += verify_prefect(known_digests(store))
        return PagesCheck(tuple(differences), tuple(not_checked))

    def deploy(self, file: Path, names: Collection[str], check: bool) -> list[Deployed]:
        if not check and not os.environ.get("PREFECT_API_URL"):
            raise ConfigError(
                "nothing says which Prefect server to deploy to",
                where="PREFECT_API_URL",
                hint="export PREFECT_API_URL=http://127.0.0.1:4200/api for that of `rufus ui`; --check needs no server",
            )
        from flows import deploy

        if check:
            return deploy.check(file, names)
        _require_server(os.environ["PREFECT_API_URL"])
        return deploy.deploy(file, names)

    def rebuild_mlflow(self, home: Path, experiment: str, warn: Callable[[str], None]) -> Rebuilt:
        from tasks.rebuild import rebuild_mlflow

        databases.check_databases()
        return rebuild_mlflow(home, experiment, databases.mlflow_elsewhere(), warn)

    def checks(self) -> list[Check]:
        return [
            Check("Prefect", True, version("prefect")),
            Check("MLflow", True, version("mlflow")),
            _port_check("Prefect's page", 4200, "--prefect-port"),
            _port_check("MLflow's page", 5000, "--mlflow-port"),
        ]


@contextmanager
def _prefect_api(home: Path) -> Iterator[Callable[[], str]]:
    """Calling what is yielded waits for the API and says its address.

    A server of our own, not Prefect's ephemeral mode: 4.8 s against 6.3 s until the first task, and its start overlaps
    with imports. Where the user set PREFECT_API_URL, that server is used.
    """
    chosen = os.environ.get("PREFECT_API_URL")
    if chosen:
        _require_server(chosen)
        yield lambda: chosen
        return
    os.environ.update(servers.prefect_environment(home))
    with servers.prefect_server(home, servers.free_port()) as server:

        def url() -> str:
            server.ready()
            return f"{server.url}/api"

        yield url


def _require_server(url: str) -> None:
    """Raises InfrastructureError where no Prefect server answers."""
    try:
        answer = httpx.get(f"{url.rstrip('/')}/health", timeout=ANSWER_SECONDS)
        why = "it has no such page" if answer.status_code == httpx.codes.NOT_FOUND else ""
    except (httpx.TransportError, httpx.InvalidURL) as error:
        why = str(error)
    if why:
        raise InfrastructureError(
            f"no Prefect server answers there: {why}",
            where=f"PREFECT_API_URL={url}",
            hint="that of `rufus ui` is http://127.0.0.1:4200/api; without the variable a run starts its own",
        )


def _port_check(what: str, port: int, option: str) -> Check:
    free = servers.port_is_free(port)
    detail = f"port {port} is {'free' if free else 'taken by another program'}"
    return Check(what, free, detail, required=False, hint=f"rufus ui {option} N")
