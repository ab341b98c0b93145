"""Two `rufus run` at once on one store: each step is made once, and the one that waits says for whom."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from rufus_core.lineage import Store
from rufus_core.lineage.lease import read_holding
from rufus_core.lineage.process import ProcessId
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.until import up_to
from tests.crash.home import POLL_SECONDS, CrashHome
from tests.jobs.miniature import small_overrides

pytestmark = pytest.mark.slow

PART = ("--until", "base")
Seen = TypeVar("Seen")


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Callable[[str], CrashHome]]:
    """Homes by name, all on one store. What a failed test left running is ended."""
    made: dict[str, CrashHome] = {}
    (tmp_path / "store").mkdir()

    def named(name: str) -> CrashHome:
        if name not in made:
            (tmp_path / name).mkdir()
            (tmp_path / name / "store").symlink_to(tmp_path / "store")
            made[name] = CrashHome(tmp_path / name, tuple(small_overrides()))
        return made[name]

    yield named
    for home in made.values():
        for process in home.processes():
            process.kill()


def until(look: Callable[[], Seen | None], run: subprocess.Popen[bytes]) -> Seen:
    while (seen := look()) is None:
        assert run.poll() is None
        time.sleep(POLL_SECONDS)
    return seen


def maker(store: Store, step: str) -> ProcessId | None:
    """The job that makes the artifact of a step now."""
    found = [read_holding(file).owner for file in store.root.glob(f"leases/{step}.*.json")]
    return found[0] if found else None


def told(home: CrashHome, step: str) -> list[dict[str, object]]:
    files = home.folder.glob(f"jobs/{step}.*/progress.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("second", ["one", "two"])
def test_two_runs_at_once_make_each_step_once(homes: Callable[[str], CrashHome], second: str) -> None:
    first, other = homes("one"), homes(second)
    runs = [first.start(*PART)]
    job = until(lambda: maker(first.store, "base"), runs[0])
    os.kill(job.pid, signal.SIGSTOP)  # so that the second run comes while the first one makes it
    output = first.folder.parent / "second.log"
    runs.append(other.start(*PART, output=output))
    if second == "two":
        until(lambda: f"a job of process {job.pid} on {job.host} is making it" in output.read_text() or None, runs[1])
    else:
        until(lambda: "base policy" in output.read_text() or None, runs[1])
    os.kill(job.pid, signal.SIGCONT)
    assert [run.wait() for run in runs] == [0, 0], output.read_text()
    records = first.store.records()
    graph = up_to(build_graph(load_recipe(overrides=small_overrides())), "base")
    assert sorted(record.name for record in records) == sorted(step.name for step in graph)
    assert not any(first.store.changes(record) for record in records)
    assert list((first.store.root / "attempts").iterdir()) == []
    assert not (first.store.root / "replaced").exists()
    homes_run = {home.folder: home for home in (first, other)}.values()
    trained = [line["step"] for home in homes_run for line in told(home, "base") if "step" in line]
    assert trained == sorted(set(trained))
    assert not any(maker(first.store, record.name.replace("/", ".")) for record in records)
