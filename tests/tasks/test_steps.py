"""A step whose job somebody else stops. Real processes."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

from rufus_core.ports.orchestration import StepOutcome
from rufus_core.ports.progress import StepProgress
from rufus_core.recipe.step import Step
from rufus_core.settings import ExecutionSettings
from tasks.jobs import JobResources
from tasks.launchers import open_launcher
from tasks.steps import StepRunner
from tasks.tracking import Tracker

STOPPED = """
import json, pathlib, sys
told = {"type": "Preempted", "what": "stopped after step 2 of 9", "where": None, "hint": "the next run goes on there"}
pathlib.Path(sys.argv[1]).with_name("error.json").write_text(json.dumps(told))
print("started")
sys.exit(143)
"""


WARNED = """
import json, pathlib, sys
line = {"warning": "step 3 is short", "time": 0.0}
pathlib.Path(sys.argv[1]).with_name("progress.jsonl").write_text(json.dumps(line) + "\\n")
sys.exit(1)
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
        self.told.append(f"warning: {message}")


def run_step(home: Path, code: str, observer: Observer) -> StepOutcome:
    tracker = Tracker(home, "tiny", observer.warned)
    tracker.run_started("tiny on cpu", {})
    step = Step(name="base", kind="base", title="base policy", stage=None, config={}, inputs={})
    execution = ExecutionSettings(retry_seconds=0.0)
    with open_launcher(execution, (sys.executable, "-c", code)) as launcher:
        runner = StepRunner(
            home, execution, tracker, observer, launcher, lambda _: JobResources(), lambda _: nullcontext({})
        )
        outcome = runner.run(step)
    tracker.run_finished("KILLED", {})
    return outcome


def test_what_a_job_warns_of_is_told_with_its_title(tmp_path: Path) -> None:
    observer = Observer()
    run_step(tmp_path, WARNED, observer)
    assert observer.told[:2] == ["base started", "warning: base policy: step 3 is short"]


def test_a_preempted_job_is_told_as_such_and_not_tried_again(tmp_path: Path) -> None:
    observer = Observer()
    outcome = run_step(tmp_path, STOPPED, observer)
    assert outcome.status == "cancelled"
    assert observer.told == ["base started", "base cancelled: stopped after step 2 of 9; the next run goes on there"]
    assert outcome.log is not None
    assert outcome.log.read_text() == "started\n"  # once
    assert json.loads((outcome.log.parent / "handle.json").read_text())["pid"] > 0
