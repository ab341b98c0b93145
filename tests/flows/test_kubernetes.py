"""A stage whose jobs run in a cluster, and a flow that is killed beside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from rufus_core.ports.orchestration import StepOutcome
from rufus_core.ports.progress import StepProgress
from rufus_core.recipe.graph import build_graph
from rufus_core.settings import ExecutionSettings
from tasks.jobs import JobResources
from tasks.launchers import open_launcher
from tasks.steps import StepRunner
from tasks.tracking import Tracker
from tests.jobs.miniature import small_recipe

pytest.importorskip("kubernetes", reason="the client of Kubernetes isn't installed: rufus-air[kubernetes]")

from tests.support.kubernetes import TestCluster, running_cluster

pytestmark = pytest.mark.slow

STEPS = 200  # of the base policy: enough that what is done to its job comes in the middle
BASE, LAST = "base", "stages/sft/checkpoint"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with running_cluster(tmp_path / "cluster") as one:
        yield one


class Heard:
    """An observer that does something once, at the first progress of a step."""

    def __init__(self, step: str = "", then: Callable[[], None] = lambda: None) -> None:
        self._step, self._then = step, then
        self.warnings: list[str] = []

    def step_started(self, step: str) -> None: ...

    def step_progressed(self, step: str, progress: StepProgress) -> None:
        if step == self._step and progress.step is not None and progress.step >= 20:
            self._step = ""
            self._then()

    def step_finished(self, step: str, outcome: StepOutcome) -> None: ...

    def warned(self, message: str) -> None:
        self.warnings.append(message)


def run(home: Path, execution: dict[str, Any], heard: Heard, last: str = BASE) -> dict[str, StepOutcome]:
    """Every step of the SFT stage up to this one."""
    recipe = small_recipe(f"base.pretrain.steps={STEPS}")
    settings = ExecutionSettings.model_validate({"threads": 1, "retry_seconds": 0.0, **execution})
    tracker = Tracker(home, "tiny", heard.warned)
    tracker.run_started("tiny", {})
    outcomes: dict[str, StepOutcome] = {}
    with open_launcher(settings) as launcher:
        runner = StepRunner(
            home, settings, tracker, heard, launcher, lambda _: JobResources(), lambda _: nullcontext({})
        )
        for step in build_graph(recipe):
            if step.stage in (None, "sft") and step.kind != "scores":
                outcomes[step.name] = runner.run(step)
                assert outcomes[step.name].status == "completed", outcomes[step.name].error
            if step.name == last:
                break
    tracker.run_finished("FINISHED", {})
    return outcomes


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepOutcome]:
    """What the local launcher makes."""
    return run(tmp_path_factory.mktemp("local"), {}, Heard(), LAST)


def in_cluster(cluster: TestCluster, home: Path, kind: str = "job") -> dict[str, Any]:
    settings = cluster.settings(home, kind=kind).model_dump(mode="json")
    return {"launcher": "kubernetes", "kubernetes": settings}


def attempts(cluster: TestCluster) -> dict[str, int]:
    """How many objects were made for each job."""
    names = [name.rpartition("-") for name in cluster.created()]
    return {job: sum(name == job for name, _, _ in names) for job, _, _ in names}


@pytest.mark.parametrize("kind", ["job", "rayjob"])
def test_a_stage_has_one_checkpoint_whatever_starts_its_jobs(
    cluster: TestCluster, tmp_path: Path, local: dict[str, StepOutcome], kind: str
) -> None:
    home = tmp_path / "home"
    outcomes = run(home, in_cluster(cluster, home, kind), Heard(), LAST)
    assert [outcome.digest for outcome in outcomes.values()] == [outcome.digest for outcome in local.values()]
    assert set(attempts(cluster).values()) == {1}


def test_a_killed_process_is_followed_by_one_that_goes_on(
    cluster: TestCluster, tmp_path: Path, local: dict[str, StepOutcome]
) -> None:
    home, killed = tmp_path / "home", list[int]()

    def kill() -> None:
        killed.extend(cluster.processes())
        os.killpg(killed[0], signal.SIGKILL)

    heard = Heard(BASE, kill)
    assert run(home, in_cluster(cluster, home), heard)[BASE].digest == local[BASE].digest
    assert len(killed) == 1
    assert ["SIGKILL" in text for text in heard.warnings] == [True]
    assert list(attempts(cluster).values()) == [2]


def test_an_api_server_that_is_killed_and_comes_back_finds_the_job(
    cluster: TestCluster, tmp_path: Path, local: dict[str, StepOutcome]
) -> None:
    home = tmp_path / "home"

    def restart() -> None:
        cluster.kill()
        cluster.start()

    assert run(home, in_cluster(cluster, home), Heard(BASE, restart))[BASE].digest == local[BASE].digest
    assert set(attempts(cluster).values()) == {1}


def test_a_flow_that_is_killed_leaves_a_job_that_the_next_one_joins(
    cluster: TestCluster, tmp_path: Path, local: dict[str, StepOutcome]
) -> None:
    home = tmp_path / "home"
    execution = in_cluster(cluster, home)
    arguments = [sys.executable, "-m", "tests.flows.test_kubernetes", str(home), json.dumps(execution)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, start_new_session=True) as flow:
        assert flow.stdout is not None
        assert flow.stdout.readline() == b"training\n"
        flow.kill()
    (trainer,) = cluster.processes()
    assert psutil.pid_exists(trainer)
    made = run(home, execution, Heard())[BASE]
    assert made.joined
    assert made.digest == local[BASE].digest
    assert set(attempts(cluster).values()) == {1}


if __name__ == "__main__":
    run(Path(sys.argv[1]), json.loads(sys.argv[2]), Heard(BASE, lambda: print("training", flush=True)))
