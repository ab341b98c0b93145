"""A run that holds GPUs around a job, in a process to be killed: `python -m tests.flows.held FOLDER RENEW_SECONDS`.

The job ends when its folder has a file `end`. Says how it came to the job, and its exit code.
"""

from __future__ import annotations

import sys
import threading
from functools import partial
from pathlib import Path

from flows.limits import gpus_held
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.step import Step
from rufus_core.settings import ComputeSettings
from tasks.children import ExecutedChild
from tasks.launcher import LocalJob
from tasks.spawner import job_environment

RECIPE = load_recipe("rufus_air", "h200", ["execution.launcher=local"])
COMPUTE = ComputeSettings(nodes=8, gpus_per_node=8)
STEP = Step("stages/reasoning_rl/train", "training", "train", {}, stage="reasoning_rl", compute=COMPUTE)
JOB = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)"


def say(line: str) -> None:
    print(line, flush=True)


def main(folder: Path, renew_seconds: float) -> None:
    command = [sys.executable, "-c", JOB, str(folder / "end")]
    job = LocalJob(folder, partial(ExecutedChild, command, job_environment(1)))
    with gpus_held(RECIPE, STEP, folder, threading.Event(), say, renew_seconds):
        joined = job.start(lambda: None)
        say("joined" if joined else "started")
        job.wait(folder / "progress.jsonl", lambda _: None, threading.Event())
    say("over")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
