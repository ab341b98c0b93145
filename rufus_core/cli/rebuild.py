"""`rufus rebuild-mlflow`: MLflow's pages anew, from the records alone."""

from __future__ import annotations

from typing import Annotated

import typer

from rufus_core.cli.parts import Home


def rebuild_mlflow(
    home: Home = None,
    experiment: Annotated[
        str, typer.Option(help="Name of the experiment to write; a run uses its recipe's name.")
    ] = "rufus_air",
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write MLflow anew from the records: a run for each artifact, models, scores, curves, aliases.

    What no record knows, such as runs that failed, stays in the old database, which is kept beside the new one. With
    MLFLOW_TRACKING_URI or MLFLOW_BACKEND_STORE_URI an empty MLflow is filled instead.
    """
    from rufus_core.cli.orchestration import load_orchestrator
    from rufus_core.cli.output import print_json
    from rufus_core.lineage.home import rufus_home

    def warn(message: str) -> None:
        typer.echo(f"warning: {message}", err=True)

    made = load_orchestrator().rebuild_mlflow(rufus_home(home), experiment, warn)
    if json_:
        print_json(
            {"num_records": made.num_records, "place": made.place, "kept": str(made.kept) if made.kept else None}
        )
        return
    typer.echo(f"{made.num_records} records are written to {made.place}")
    if made.kept is not None:
        typer.echo(f"the old database is kept in {made.kept}")
        typer.echo("A `rufus ui` that runs still shows the old one: start it again.")
