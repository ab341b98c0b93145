"""The way from a training job to the launcher of its ranks, which lives outside the core."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import cast

from rufus_core.errors import ConfigError
from rufus_core.ports.ranks import RankLauncher

GROUP, NAME = "rufus.ranks", "default"


def load_launcher() -> RankLauncher:
    """The installed launcher, ready to be used. Raises ConfigError where there is none, or it lacks something."""
    found = entry_points(group=GROUP, name=NAME)
    if not found:
        raise ConfigError("nothing is installed that starts ranks", where=f"entry point {GROUP}", hint="make install")
    launcher = cast(RankLauncher, next(iter(found)).load()())
    launcher.require()
    return launcher
