"""`rufus ui`: the pages of Prefect and MLflow over the runs of a home."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from rufus_core.cli.parts import Home

MAX_PORT = 65535


def ui(
    home: Home = None,
    prefect_port: Annotated[
        int, typer.Option(min=1, max=MAX_PORT, help="Port of Prefect's page: flows and their steps.")
    ] = 4200,
    mlflow_port: Annotated[
        int, typer.Option(min=1, max=MAX_PORT, help="Port of MLflow's page: curves, checkpoints, scores.")
    ] = 5000,
) -> None:
    """Serve both pages on 127.0.0.1 until Ctrl-C."""
    from rufus_core.cli.orchestration import load_orchestrator
    from rufus_core.errors import ConfigError
    from rufus_core.lineage.home import rufus_home

    if prefect_port == mlflow_port:
        raise ConfigError(f"both pages are given port {mlflow_port}", hint="choose another one with --mlflow-port")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        typer.echo("Starting, this takes some seconds ...")
        with load_orchestrator().serve_pages(rufus_home(home), prefect_port, mlflow_port) as pages:
            for name, address in pages.items():
                typer.echo(f"{name}: {address}")
            typer.echo("Ctrl-C stops both.")
            signal.pause()
    except KeyboardInterrupt:
        typer.echo("Stopped.")
