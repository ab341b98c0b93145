"""Where a user's runs live."""

from __future__ import annotations

import os
from pathlib import Path


def rufus_home(override: Path | None = None) -> Path:
    """The home folder: the option, else the environment variable RUFUS_HOME, else `.rufus` in the current folder."""
    chosen = override or Path(os.environ.get("RUFUS_HOME") or ".rufus")
    return chosen.expanduser().absolute()


def store_root(home: Path) -> Path:
    return home / "store"
