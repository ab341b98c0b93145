"""Attempts at dialogues for the filters (IF-D3, IF-D6): a solver answers several times, and the rubrics decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rufus_core.data.synthesis.dialogue import Dialogue, Entry, Failure, FailureReason
from rufus_core.errors import InfrastructureError
from rufus_core.jobs.synthesis.models import Solver
from rufus_core.ports.judging import Judge
from rufus_core.ports.programs import CodeSandbox
from rufus_core.rewards.rubrics import score_rubrics
from rufus_core.types import Frozen, VerdictKind, content_id


class Series(Frozen):
    """What decides a series of attempts at one problem: the solver, the judge, how many, the seed."""

    problem: str
    solver: str
    judge: str
    num: int
    seed: int

    @property
    def id(self) -> str:
        return content_id("attempts", self.model_dump())


class Attempts(Entry):
    """Whether each attempt of a series passed."""

    series: Series
    passes: tuple[bool, ...]

    @property
    def id(self) -> str:
        return self.series.id


@dataclass(frozen=True, slots=True)
class Trial:
    """A dialogue, and the series of attempts that it gets."""

    dialogue: Dialogue
    series: Series

    @property
    def id(self) -> str:
        return self.series.id


def trials(dialogues: Sequence[Dialogue], solver: Solver, judge: Judge, num: int, seed: int) -> list[Trial]:
    return [
        Trial(
            each,
            Series(problem=each.problem.id, solver=solver.identity, judge=judge.identity, num=num, seed=seed),
        )
        for each in dialogues
    ]


def attempt(trial: Trial, solver: Solver, judge: Judge, sandbox: Callable[[], CodeSandbox]) -> Attempts | Failure:
    """All attempts of the series, or why one has no verdict. Raises ConfigError when an endpoint refuses us."""
    problem, passes = trial.dialogue.problem, []
    for index in range(trial.series.num):
        seed = int(content_id(trial.id, index)[:7], 16)  # 28 bits: servers want a C int
        try:
            text = solver.answer(trial.dialogue, seed)
        except InfrastructureError as error:
            return Failure(id=trial.id, reason=FailureReason.NO_SOLVER, detail=error.what)
        verdict = score_rubrics(problem, text, judge, sandbox)
        if verdict.kind is VerdictKind.ABORTED:
            return Failure(id=trial.id, reason=FailureReason.NO_VERDICT, detail=verdict.reason)
        passes.append(verdict.passed)
    return Attempts(series=trial.series, passes=tuple(passes))
