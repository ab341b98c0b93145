"""The way from the command line to the orchestrator, which lives outside the core."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

import typer
from rich.console import Console

from rufus_core.cli.entry import INTERRUPTED
from rufus_core.cli.preflight import preflight
from rufus_core.cli.progress import RunDisplay
from rufus_core.errors import ConfigError, JobFailed, RufusError
from rufus_core.lineage.files import machine_hint
from rufus_core.ports.orchestration import Orchestrator, RunOutcome
from rufus_core.recipe.step import Step
from rufus_core.settings import Recipe

GROUP, NAME = "rufus.orchestrator", "default"


def load_orchestrator() -> Orchestrator[Recipe, Step]:
    """The installed orchestrator. Raises ConfigError where the package is not installed."""
    found = entry_points(group=GROUP, name=NAME)
    if not found:
        raise ConfigError("no orchestrator is installed", where=f"entry point {GROUP}", hint="make install")
    return cast(Orchestrator[Recipe, Step], next(iter(found)).load()())


def carry_out(recipe: Recipe, graph: Sequence[Step], home: Path, out: Console) -> RunOutcome:
    """Check what a graph needs, run it, and show it on `out`. Every step of the outcome is reused or completed.

    Raises:
        typer.Exit: Ctrl-C or SIGTERM.
        RufusError: something is missing, the disk failed, or a step did (JobFailed).
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # means the same as Ctrl-C
    preflight(recipe, graph, home)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with RunDisplay(graph, out) as display:
            outcome = load_orchestrator().run(recipe, graph, home, display)
    except OSError as error:
        what = f"the run stopped: {error.strerror or error}"
        raise RufusError(what, where=error.filename, hint=machine_hint(error)) from error
    if outcome.interrupted:
        again = shlex.join(["rufus", *sys.argv[1:]])
        typer.echo(f"Stopped. Finished steps are kept: type `{again}` to go on.", err=True)
        raise typer.Exit(INTERRUPTED)
    for step in outcome.steps.values():
        if step.status == "failed":
            log = f"its output is in {step.log}" if step.log and step.log.exists() else None
            raise JobFailed(step.error, hint=log)
    return outcome
