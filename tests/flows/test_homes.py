"""Where a deployed run lives: a worker's folders are deleted after it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flows.deployed import run_deployed
from rufus_core.errors import ConfigError
from rufus_core.lineage.store import Store
from rufus_core.recipe.step import Step
from rufus_core.settings import Recipe


def _no_graph(_recipe: Recipe, _store: Store) -> Sequence[Step]:
    raise AssertionError("it must be refused before")


@pytest.mark.parametrize(
    ("home", "variable", "where"),
    [(None, None, "home"), (None, ".rufus", "RUFUS_HOME=.rufus"), ("runs/mine", "/srv/rufus", "home=runs/mine")],
)
def test_a_home_that_would_be_deleted_is_refused(
    home: str | None, variable: str | None, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUFUS_HOME", raising=False)
    if variable is not None:
        monkeypatch.setenv("RUFUS_HOME", variable)
    with pytest.raises(ConfigError) as caught:
        run_deployed(_no_graph, "rufus_air", "cpu", None, home)
    assert caught.value.where == where
