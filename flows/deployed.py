"""What all deployed flows do: settings from names, a graph, and a run of it that the flow run's log tells about.

Prefect's page asks for the flows' parameters in a form, and explains each by its line in the docstring.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from prefect import get_run_logger, runtime

from flows.orphans import end_tasks_of_dead_runs
from flows.run import run_tracked
from rufus_core.errors import ConfigError
from rufus_core.lineage.home import open_store, rufus_home
from rufus_core.lineage.sharing import mirror
from rufus_core.lineage.store import Store
from rufus_core.ports.orchestration import RunOutcome, StepOutcome
from rufus_core.ports.progress import StepProgress
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.step import Step
from rufus_core.settings import Recipe

Graph = Callable[[Recipe, Store], Sequence[Step]]


def run_deployed(
    graph: Graph, recipe: str, profile: str, overrides: list[str] | None, home: str | None, keep_going: bool = False
) -> RunOutcome:
    """Run the graph of a recipe that is given by names.

    Raises:
        ConfigError: neither `home` nor RUFUS_HOME says where runs live, or not by an absolute path. A worker starts
            flows in a folder that it deletes later.
    """
    place = home or os.environ.get("RUFUS_HOME")
    if not place:
        raise ConfigError(
            "this worker doesn't know where runs live", where="home", hint="set RUFUS_HOME for the worker"
        )
    if not Path(place).expanduser().is_absolute():
        raise ConfigError(
            "a worker runs flows in a folder of their own, which it deletes, so this would be lost with it",
            where=f"{'home' if home else 'RUFUS_HOME'}={place}",
            hint="write the whole path",
        )
    end_tasks_of_dead_runs()
    settings = load_recipe(recipe, profile, overrides or [])
    folder = rufus_home(Path(home) if home else None)
    store, observer = open_store(folder), LogObserver()
    for fault in mirror(store):
        observer.warned(str(fault))
    return run_tracked(settings, graph(settings, store), folder, observer, keep_going=keep_going)


def called(template: str) -> Callable[[], str]:
    """A flow run's name by its parameters. A recipe or profile that is a file goes by the file's name."""

    def name() -> str:
        given = runtime.flow_run.parameters
        files = {key: Path(given[key]).name.removesuffix(".yaml") for key in ("recipe", "profile")}
        return template.format(**{**given, **files})

    return name


class LogObserver:
    """Tells a flow run's log what happens, where no terminal listens."""

    def __init__(self) -> None:
        self._logger = get_run_logger()

    def step_started(self, step: str) -> None:
        self._logger.info("%s: started", step)

    def step_progressed(self, step: str, progress: StepProgress) -> None:
        if progress.message:  # curves are in MLflow
            self._logger.info("%s: %s", step, progress.message)

    def step_finished(self, step: str, outcome: StepOutcome) -> None:
        self._logger.info("%s: %s %s", step, outcome.status, outcome.error)

    def warned(self, message: str) -> None:
        self._logger.warning(message)
