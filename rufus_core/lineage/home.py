"""Where a user's runs live."""

from __future__ import annotations

import os
from pathlib import Path

from rufus_core.errors import ConfigError
from rufus_core.lineage.cache import HashCache
from rufus_core.lineage.files import told_plainly
from rufus_core.lineage.shared import Shared
from rufus_core.lineage.store import Store

SHARED_ROOT = "RUFUS_STORE"  # the environment variable with its URL


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


def open_store(home: Path, cache: HashCache | None = None) -> Store:
    """The store of a home, with the shared root that RUFUS_STORE names. Raises ConfigError for a wrong URL."""
    return Store(store_root(home), cache, Shared.at(os.environ.get(SHARED_ROOT)))


def store_root(home: Path) -> Path:
    return home / "store"
