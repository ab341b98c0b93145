"""The way from the command line to the orchestrator, which lives outside the core."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import cast

from rufus_core.errors import ConfigError
from rufus_core.ports import Orchestrator
from rufus_core.recipe.graph import Step
from rufus_core.settings import Recipe

GROUP, NAME = "rufus.orchestrator", "default"


def load_orchestrator() -> Orchestrator[Recipe, Step]:
    """The installed orchestrator. Raises ConfigError where the package is not installed."""
    found = entry_points(group=GROUP, name=NAME)
    if not found:
        raise ConfigError("no orchestrator is installed", where=f"entry point {GROUP}", hint="make install")
    return cast(Orchestrator[Recipe, Step], next(iter(found)).load()())
