"""What a user hears of a job that waits, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from rufus_core.settings import KubernetesSettings
from tasks.kubernetes import patience
from tasks.kubernetes.patience import Patience
from tasks.kubernetes.verdict import BEING_MADE, Running, Waiting

SETTINGS = KubernetesSettings(image="rufus-air:1", home_claim="rufus-home", home_path=str(Path("/rufus")))


def test_a_container_that_is_long_in_the_making_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume that can't be mounted shows itself in no other way."""
    now = 0.0
    monkeypatch.setattr(patience.time, "monotonic", lambda: now)
    said: list[str] = []
    watched = Patience(SETTINGS, said.append)
    watched.saw(Waiting(BEING_MADE, None))
    now = 59.0
    watched.saw(Waiting(BEING_MADE, None))
    assert said == []
    now = 60.0
    watched.saw(Waiting(BEING_MADE, None))
    now = 3600.0
    watched.saw(Waiting(BEING_MADE, None))
    assert said == [f"it waits in the cluster: {BEING_MADE}"]
    assert not watched.gave_up
    watched.saw(Running())
    assert len(said) == 1
