"""Selection: which of a training's candidates is carried forward, and why (SFT-09, CRL-T6, RM-T3)."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.evaluation.statistics import pass_at_1
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.problem_files import load_problems
from rufus_core.lineage.names import CHECKPOINTS, step_folder, step_of
from rufus_core.lineage.record import Candidate, Decision
from rufus_core.settings import SelectionSettings

_VALIDATION_SAMPLES = 4


def select_checkpoint(job: Job) -> Outcome:
    select = SelectionSettings.model_validate(job.document.config["select"])
    training = job.input("training")
    kept = (step_of(f"{CHECKPOINTS}/{each.name}") for each in (training / CHECKPOINTS).iterdir())
    decision = _decide(job, select, sorted(step for step in kept if step is not None), training)
    for file in sorted((training / step_folder(decision.chosen_step)).iterdir()):
        shutil.copyfile(file, job.output / file.name)
    return Outcome(step=decision.chosen_step, decision=decision)


def _decide(job: Job, select: SelectionSettings, steps: list[int], training: Path) -> Decision:
    candidates = tuple(Candidate(step=step) for step in steps)
    if select.rule == "last":
        reason = f"the last of {len(steps)} candidates"
        return Decision(rule="last", chosen_step=steps[-1], candidates=candidates, reason=reason)
    if select.rule == "step":
        if select.step not in steps:
            raise ConfigError(
                f"step {select.step} was not saved",
                where=f"stages.{job.document.stage}.run.select.step",
                hint=f"saved steps: {', '.join(map(str, steps))}",
            )
        return Decision(rule="step", chosen_step=select.step, candidates=candidates, reason="named by the recipe")
    return _peak(job, steps, training)


def _peak(job: Job, steps: list[int], training: Path) -> Decision:
    """Highest pass@1 on the validation problems, which neither training nor the held-out scores use."""
    from rufus_core.jobs.scores import play_problems  # brings torch, which the other rules don't need

    problems = load_problems(job.input("problems"), "validation")
    if not problems:
        raise ConfigError(
            "there is no validation problem to select by",
            where=f"stages.{job.document.stage}.run.select",
            hint="raise num_validation, or select the last step",
        )
    candidates = []
    with job.report(len(steps)) as report:
        for count, step in enumerate(steps, start=1):
            scores = play_problems(job, training / step_folder(step), problems, samples=_VALIDATION_SAMPLES)
            value = pass_at_1(scores).mean
            if value is None:
                raise InfrastructureError(f"no validation problem of step {step} could be scored")
            candidates.append(Candidate(step=step, value=value))
            report.log(count, {"validation_pass_at_1": value})
    best = best_candidate(candidates)
    return Decision(
        rule="peak",
        metric="validation pass@1",
        chosen_step=best.step,
        candidates=tuple(candidates),
        reason=f"highest validation pass@1 of {len(candidates)} candidates; the earliest of equals",
    )


def best_candidate(candidates: Sequence[Candidate]) -> Candidate:
    """The candidate of the highest value; the earliest of equals."""
    return max(candidates, key=lambda c: (-math.inf if c.value is None else c.value, -c.step))
