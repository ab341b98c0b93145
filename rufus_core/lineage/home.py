"""Where a user's runs live."""

from __future__ import annotations

import os
from pathlib import Path

from rufus_core.errors import ConfigError
from rufus_core.lineage.files import told_plainly


def rufus_home(override: Path | None = None) -> Path:
    """The home folder: the option, else the environment variable RUFUS_HOME, else `.rufus` in the current folder.

    Raises:
        ConfigError: it, or a folder that it would lie in, is a file; or no user has the name after its `~`.
        LineageError: it lies where this user may not look.
    """
    chosen = override or Path(os.environ.get("RUFUS_HOME") or ".rufus")
    try:
        home = chosen.expanduser().absolute()
    except RuntimeError:
        user = chosen.parts[0].removeprefix("~")
        raise ConfigError(f"no user {user!r} has a home here", where=str(chosen), hint="write the path out") from None
    with told_plainly("look for the runs", home):
        file = next((place for place in (home, *home.parents) if place.is_file()), None)
    if file is not None:
        raise ConfigError("a file is where runs should live", where=str(file), hint="name a folder with --home")
    return home


def store_root(home: Path) -> Path:
    return home / "store"
