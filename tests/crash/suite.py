"""Kill runs with SIGKILL, at every point of the job protocol and at random times, and look at what they end in.

    python -m tests.crash.suite --kills 100 [--seed 0]        (make crash)

Each run is gone on with by the same command until it is through. Then its artifacts must be those of an undisturbed
run, bit for bit, and nothing may be left of the crashes: no process, attempt, doubled metric or run called running.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rufus_core.lineage.crash_points import SHARING, CrashPoint
from tests.crash.home import POLL_SECONDS, CrashHome
from tests.jobs.miniature import RL_STAGES, small_overrides

LIVING = ("worker", "job", "prefect server", "tasks.forkserver")
TARGETS = (*LIVING, *(f"at {point}" for point in CrashPoint if point not in SHARING))
LONGEST_WAIT = 2.5  # seconds from the first sight of a job to the kill
RUN_SECONDS = 150.0
MOST_RUNS = 6  # undisturbed ones, until a home is through
# Long enough that most kills hit inside a training.
OVERRIDES = (
    *small_overrides(),
    "execution.retry_seconds=0.1",
    "stages.sft.run={steps: 12, checkpoint_interval_steps: 4}",
    *(f"stages.{stage}.run={{steps: 5, checkpoint_interval_steps: 2}}" for stage in RL_STAGES),
    "stages.rlhf.reward_model={num_pairs: 40, steps: 10, batch_pairs: 4}",
)


@dataclass
class Report:
    kills: Counter[str] = field(default_factory=Counter)  # by target
    steps: Counter[str] = field(default_factory=Counter)  # by the step whose job lived when its process was killed
    homes: int = 0
    faults: list[str] = field(default_factory=list)


def targets(seed: int) -> Iterator[tuple[str, random.Random]]:
    """Every target equally often, in another order each time, each with its own random numbers."""
    rng = random.Random(f"crash {seed}")
    while True:
        for target in rng.sample(TARGETS, len(TARGETS)):
            yield target, random.Random(rng.random())


def reference(folder: Path, overrides: tuple[str, ...]) -> dict[str, str]:
    """What an undisturbed run makes."""
    home = CrashHome(folder, overrides)
    folder.mkdir(parents=True)
    code = home.start().wait(RUN_SECONDS)
    if code != 0:
        raise SystemExit((folder / "out.log").read_text(errors="replace"))
    return home.artifacts()


def torment(
    home: CrashHome, wanted: dict[str, str], kills: Iterator[tuple[str, random.Random]], report: Report
) -> None:
    """Kill the home's runs until they are through or the kills are used up; then let it finish, and look."""
    report.homes += 1
    run: subprocess.Popen[bytes] | None = None
    for target, rng in kills:
        if target.startswith("at "):
            stop(run)
            before = home.crashes()
            run = home.start(crash_at=target.removeprefix("at "))
            watch(home, run, report, RUN_SECONDS)
            killed = home.crashes() > before  # of the jobs that died there, one counts
        else:
            run = run if run is not None and run.poll() is None else home.start()
            killed = strike(home, run, target, rng, report)
        report.kills[target] += killed
        if run.poll() == 0:  # a job that dies after its artifact is there is not missed
            break
    stop(run)
    for _ in range(MOST_RUNS):
        run = home.start()
        watch(home, run, report, RUN_SECONDS)
        if run.returncode == 0:
            report.faults += [f"{home.folder.name}: {fault}" for fault in home.faults(wanted)]
            return
    report.faults.append(f"{home.folder.name}: not through after {MOST_RUNS} runs: {_last_words(home)}")


def strike(home: CrashHome, run: subprocess.Popen[bytes], target: str, rng: random.Random, report: Report) -> bool:
    """Wait for a job to live and a little more, kill the target, and give the run a moment; whether it was killed."""
    deadline = time.monotonic() + RUN_SECONDS
    while run.poll() is None and not home.jobs() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    watch(home, run, report, rng.uniform(0, LONGEST_WAIT))
    jobs = home.jobs()
    if target == "worker":
        victim: int | None = run.pid if run.poll() is None else None
    elif target == "job":
        victim = next(iter(jobs.values()))[0].pid if jobs else None
    else:
        server = home.server(target)
        victim = server.pid if server else None
    if victim is None:
        return False
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return False
    report.steps.update(name.rpartition(".")[0] for name in jobs)
    watch(home, run, report, 2.0)
    return True


def watch(home: CrashHome, run: subprocess.Popen[bytes], report: Report, seconds: float) -> None:
    """Wait for a run's end, and see that no step ever has two jobs."""
    deadline = time.monotonic() + seconds
    while run.poll() is None and time.monotonic() < deadline:
        for folder, processes in home.jobs().items():
            if len(processes) > 1:
                report.faults.append(f"{home.folder.name}: {folder} has {len(processes)} jobs at once")
        time.sleep(POLL_SECONDS)
    if seconds == RUN_SECONDS and run.poll() is None:
        report.faults.append(f"{home.folder.name}: a run hangs")
        stop(run)


def stop(run: subprocess.Popen[bytes] | None) -> None:
    if run is not None and run.poll() is None:
        psutil.Process(run.pid).kill()
        run.wait()


def _last_words(home: CrashHome) -> str:
    return " | ".join((home.folder / "out.log").read_text(errors="replace").splitlines()[-3:])


def run_suite(folder: Path, num_kills: int, seed: int, overrides: tuple[str, ...] = OVERRIDES) -> Report:
    wanted = reference(folder / "undisturbed", overrides)
    report = Report()
    while report.kills.total() < num_kills and not report.faults:
        left = num_kills - report.kills.total()
        home = CrashHome(folder / f"home-{report.homes}", overrides)
        home.folder.mkdir()
        before = report.kills.total()
        torment(home, wanted, itertools.islice(targets(seed + report.homes), left), report)
        print(f"{home.folder.name}: {report.kills.total() - before} kills, {len(report.faults)} faults", flush=True)
        if not report.faults:
            shutil.rmtree(home.folder)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rufus-crash-"))
    started = time.monotonic()
    report = run_suite(folder, options.kills, options.seed)
    for fault in report.faults:
        print(f"fault: {fault}", file=sys.stderr)
    told = {
        "name": "crash",
        "kills": report.kills.total(),
        "homes": report.homes,
        "faults": len(report.faults),
        "seconds": round(time.monotonic() - started),
        "by_target": dict(report.kills.most_common()),
        "by_step": dict(report.steps.most_common()),
    }
    if report.faults:
        print(f"what is left lies in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    print(json.dumps(told))
    return bool(report.faults)


if __name__ == "__main__":
    sys.exit(main())
