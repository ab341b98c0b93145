"""A screen: samplers answer a stage's training problems, and those in the window stay (PIPE-10).

Files: `train.jsonl`, the problems that stay; `screen.jsonl`, what became of each, with every sampler's pass counts;
`report.json`, who screened, by what window, with which seed, and counts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rufus_core.errors import DataError, Preempted
from rufus_core.evaluation.screening import Screened, by_source, count_decisions, screened
from rufus_core.jobs.attempt_log import AttemptLog
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.problem_files import load_problems, save_problems, save_report, save_rows
from rufus_core.jobs.samplers import sampler
from rufus_core.settings import POLICY, FilterSettings
from rufus_core.training.reporter import Reporter
from rufus_core.types import Json, Problem


def screen_problems(job: Job) -> Outcome:
    """Play what an earlier job of the same fingerprint didn't, and decide.

    Raises:
        DataError: no problem stays, and the screen isn't one that may leave nothing.
        Preempted: SIGTERM arrived; what was played is kept.
    """
    settings = FilterSettings.model_validate(job.document.config["filter"])
    problems = load_problems(job.input("problems"), "train")
    total = len(problems) * len(settings.samplers)
    with job.report(total) as report, job.stoppable() as stop, AttemptLog(job.state) as log:
        for name in settings.samplers:
            _play(job, name, problems, log, report, stop)
        rows = [screened(problem, log.of(problem.id, settings.samplers), settings) for problem in problems]
    kept = [problem for problem, row in zip(problems, rows, strict=True) if row.verdict == "kept"]
    counts = count_decisions(rows)
    if not kept and not job.document.config.get("may_be_empty"):
        raise _nothing_left(job, rows)
    save_problems(job.output, "train", kept)
    save_rows(job.output / "screen.jsonl", rows)
    save_report(job.output, _header(job, settings) | {"counts": _counts(rows), "by_source": by_source(rows)})
    return Outcome({"problems": float(len(problems)), **{name: float(count) for name, count in counts.items()}})


def _play(
    job: Job,
    name: str,
    problems: Sequence[Problem],
    log: AttemptLog,
    report: Reporter,
    stop: threading.Event,
) -> None:
    left = [problem for problem in problems if not log.of(problem.id, [name])]
    if not left:
        return
    with sampler(job, name) as play:
        for problem, attempts in play(left):
            log.add(name, problem.id, attempts)
            report.log(len(log), {})
            if stop.is_set() and len(log) < report.total:
                raise Preempted(
                    f"stopped after {len(log)} of {report.total} problems", hint="the next run goes on there"
                )


def _header(job: Job, settings: FilterSettings) -> dict[str, Json]:
    """Under what conditions the numbers were made."""
    policy = job.document.inputs.get("policy")
    samplers: dict[str, Json] = {}
    for name in settings.samplers:
        if name != POLICY:
            samplers[name] = {}
        elif policy is not None:
            samplers[name] = {"name": policy.name, "digest": policy.digest}
            if (step := job.document.config.get("candidate_step")) is not None:
                samplers[name]["step"] = step
    return {
        "screen": job.document.name,
        "samplers": samplers,
        "num_attempts": settings.num_attempts,
        "window": settings.window(),
        "temperature": job.document.config["temperature"],
        "seed": job.document.seed,
    }


def _counts(rows: Sequence[Screened]) -> dict[str, int]:
    attempts = [each for row in rows for each in row.attempts.values()]
    return {
        "problems": len(rows),
        **count_decisions(rows),
        "attempts_scored": sum(each.num_scored for each in attempts),
        "attempts_passed": sum(each.num_passed for each in attempts),
        "attempts_aborted": sum(each.num_aborted for each in attempts),
        "attempts_unscorable": sum(each.num_unscorable for each in attempts),
    }


def _nothing_left(job: Job, rows: Sequence[Screened]) -> DataError:
    told = ", ".join(f"{count} {name}" for name, count in count_decisions(rows).items())
    lost = next((reason for row in rows for each in row.attempts.values() for reason in each.lost_to), None)
    return DataError(
        f"no problem of {len(rows)} is left: {told}" + (f"; {lost}" if lost else ""),
        where=job.document.name,
        hint="widen the filter's window, or give problems that fit the policy",
    )
