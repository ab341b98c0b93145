"""A screen: the policy that a stage starts from answers its training problems, and those in the window stay (PIPE-10).

Files: `train.jsonl`, the problems that stay; `screen.jsonl`, what became of each; `report.json`, counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from rufus_core.errors import DataError
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.problem_files import load_problems, save_problems, save_report, save_rows
from rufus_core.jobs.scores import play_problems
from rufus_core.settings import FilterSettings
from rufus_core.types import Frozen, Problem


class Screened(Frozen):
    """What a screen found for one problem. `num_scored` leaves out attempts that the infrastructure failed.

    `unscored`: it failed all of them, so that nothing is known; such a problem doesn't stay.
    """

    id: str
    source: str
    num_passed: int
    num_scored: int
    verdict: Literal["kept", "out_of_window", "unscored"]


def screen_problems(job: Job) -> Outcome:
    """Raises DataError if no problem stays."""
    settings = FilterSettings.model_validate(job.document.config["filter"])
    assert settings.num_attempts is not None
    problems = load_problems(job.input("problems"), "train")
    with job.report(len(problems) * settings.num_attempts) as report:
        passes = play_problems(
            job,
            job.input("policy"),
            problems,
            samples=settings.num_attempts,
            temperature=job.document.config["temperature"],
            on_played=lambda count: report.log(count, {}),
        )
    found = verdicts(problems, passes, settings)
    kept = [problem for problem, each in zip(problems, found, strict=True) if each.verdict == "kept"]
    counts = dict(sorted(Counter[str](each.verdict for each in found).items()))
    if not kept:
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        raise DataError(
            f"no problem of {len(problems)} is left: {told}",
            where=job.document.name,
            hint="widen the filter's window, or give problems that fit the policy",
        )
    save_problems(job.output, "train", kept)
    save_rows(job.output / "screen.jsonl", found)
    save_report(job.output, {"counts": {"problems": len(problems), **counts}})
    return Outcome({"problems": float(len(problems)), **{name: float(count) for name, count in counts.items()}})


def verdicts(
    problems: Sequence[Problem], passes: Mapping[str, Sequence[float | None]], settings: FilterSettings
) -> list[Screened]:
    """One for each problem, in order.

    `passes` has 1 or 0 for each attempt by problem id, and None for one that the infrastructure failed.
    """
    found = []
    for problem in problems:
        scored = [each for each in passes[problem.id] if each is not None]
        verdict: Literal["kept", "out_of_window", "unscored"] = "unscored"
        if scored:
            verdict = "kept" if settings.admits(sum(scored) / len(scored)) else "out_of_window"
        found.append(
            Screened(
                id=problem.id,
                source=problem.source,
                num_passed=round(sum(scored)),
                num_scored=len(scored),
                verdict=verdict,
            )
        )
    return found
