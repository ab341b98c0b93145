"""A step whose job somebody else stops. Real processes."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

from rufus_core.ports import StepOutcome, StepProgress
from rufus_core.recipe.graph import Step
from rufus_core.settings import ExecutionSettings
from tasks.spawner import Spawner
from tasks.steps import StepRunner
from tasks.tracking import Tracker

STOPPED = """
import json, pathlib, sys
told = {"type": "Preempted", "what": "stopped after step 2 of 9", "where": None, "hint": "the next run goes on there"}
pathlib.Path(sys.argv[1]).with_name("error.json").write_text(json.dumps(told))
print("started")
sys.exit(143)
"""


class Observer:
    def __init__(self) -> None:
        self.told: list[str] = []

    def step_started(self, step: str) -> None:
        self.told.append(f"{step} started")

    def step_progressed(self, step: str, progress: StepProgress) -> None:
        raise AssertionError(progress)

    def step_finished(self, step: str, outcome: StepOutcome) -> None:
        self.told.append(f"{step} {outcome.status}: {outcome.note}")

    def warned(self, message: str) -> None:
        raise AssertionError(message)


def test_a_preempted_job_is_told_as_such_and_not_tried_again(tmp_path: Path) -> None:
    observer = Observer()
    tracker = Tracker(tmp_path, "tiny", observer.warned)
    tracker.run_started("tiny on cpu", {})
    step = Step(name="base", kind="base", title="base policy", stage=None, config={}, inputs={})
    with Spawner(1, (sys.executable, "-c", STOPPED)) as spawner:
        execution = ExecutionSettings(retry_seconds=0.0)
        runner = StepRunner(tmp_path, execution, tracker, observer, spawner, lambda _: nullcontext({}))
        outcome = runner.run(step)
    tracker.run_finished("KILLED", {})
    assert outcome.status == "cancelled"
    assert observer.told == ["base started", "base cancelled: stopped after step 2 of 9; the next run goes on there"]
    assert outcome.log is not None
    assert outcome.log.read_text() == "started\n"  # once
    assert json.loads((outcome.log.parent / "handle.json").read_text())["pid"] > 0
