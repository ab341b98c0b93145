"""Makes the problems: single turns and dialogues, then the three filters, each part resumable (IF-D1 to IF-D7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pydantic import Field

from rufus_core.data.constraints.library import KINDS
from rufus_core.data.synthesis.dialogue import MULTI_TURN, Dialogue, DialogueSpec, Failure, Query, SynthesisSettings
from rufus_core.data.synthesis.filters import Dropped, Filtered, hard_enough, sane, solvable
from rufus_core.data.synthesis.journal import Journal
from rufus_core.data.synthesis.play import Synthesis, dialogue_maker, finish
from rufus_core.jobs.synthesis.attempts import Attempts, attempt, trials
from rufus_core.jobs.synthesis.models import Models, Solver
from rufus_core.jobs.synthesis.single_turn import make_single_turn, single_turn_specs
from rufus_core.jobs.synthesis.spending import Spending
from rufus_core.ports.programs import CodeSandbox
from rufus_core.rewards.generated import GENERATED
from rufus_core.types import Frozen, Json, Problem

OnProgress = Callable[[str, int], Callable[[], None]]  # of a phase and its number of items: called at each one's end
_BYTES_PER_TOKEN = 4  # no tokenizer is known here; an English text's bytes, about


class SynthesisPlan(Frozen):
    """What is asked for. `dialogues` is None where none are; attempts are those of IF-D3 and IF-D6."""

    num_single: int = Field(default=0, ge=0)
    dialogues: SynthesisSettings | None = None
    num_written: int = Field(default=0, ge=0)  # constraints of the teacher's own in a single turn
    num_teacher_attempts: int = Field(default=4, gt=0)
    num_policy_attempts: int = Field(default=8, gt=0)
    seed: int = 0
    workers: int = Field(default=8, gt=0)


@dataclass(frozen=True, slots=True)
class Made:
    """`report` is JSON: what was asked for, kept, dropped and failed, by whom, and what it took."""

    problems: tuple[Problem, ...]
    dropped: tuple[Dropped, ...]
    failures: tuple[Failure, ...]
    report: dict[str, Json]


def make_problems(
    plan: SynthesisPlan,
    models: Models,
    queries: Sequence[Query],
    folder: Path,
    sandbox: Callable[[], CodeSandbox],
    on_progress: OnProgress = lambda _phase, _total: lambda: None,
) -> Made:
    """What is finished in `folder`, an earlier command's perhaps, isn't asked for again.

    Raises:
        ConfigError: an endpoint refuses us, or two assistants are the same.
        DataError: a journal can't be read, or another process writes it.
        InfrastructureError: an endpoint replies to nobody.
        SandboxUnavailable: there are checkers to run, and this machine can't isolate them.
    """
    with ExitStack() as held:
        journal = held.enter_context(Journal(folder / "dialogues.jsonl", Dialogue))
        tried = held.enter_context(Journal(folder / "attempts.jsonl", Attempts))
        spending = held.enter_context(Spending(folder / "usage.jsonl", models.meters))

        def counted(phase: str, total: int) -> Callable[[], None]:
            told = on_progress(phase, total)

            def done() -> None:
                spending.note()
                told()

            return done

        outcomes: list[Dialogue | Failure] = []
        for phase, specs, make in _parts(plan, models, queries, sandbox):
            outcomes += finish(specs, make, journal, plan.workers, counted(phase, len(specs)))
        made = Synthesis.of(outcomes)
        lost: list[Failure] = []

        def passes(kept: Sequence[Dialogue], solver: Solver, num: int, phase: str) -> dict[str, tuple[bool, ...]]:
            series = trials(kept, solver, models.judge, num, plan.seed)
            ended: list[Attempts | Failure] = finish(
                series,
                lambda trial: attempt(trial, solver, models.judge, sandbox),
                tried,
                plan.workers,
                counted(phase, len(series)),
            )
            lost.extend(each for each in ended if isinstance(each, Failure))
            scored = zip(kept, ended, strict=True)
            return {dialogue.id: each.passes for dialogue, each in scored if isinstance(each, Attempts)}

        found = sane(made.dialogues, _num_tokens, plan.seed)
        found = found.then(
            lambda kept: solvable(kept, passes(kept, models.quality, plan.num_teacher_attempts, "quality"))
        )
        if models.difficulty is not None:
            policy = models.difficulty
            found = found.then(lambda kept: hard_enough(kept, passes(kept, policy, plan.num_policy_attempts, "policy")))
        failures = (*made.failures, *lost)
        spending.note()
        report = _report(plan, models, made, found, failures) | {"usage": spending.totals()}
    return Made(tuple(each.problem for each in found.kept), found.dropped, failures, report)


def _parts(
    plan: SynthesisPlan, models: Models, queries: Sequence[Query], sandbox: Callable[[], CodeSandbox]
) -> list[tuple[str, tuple[DialogueSpec, ...], Callable[[DialogueSpec], Dialogue | Failure]]]:
    """Each set's name, specifications and maker."""
    user = models.user
    singles = single_turn_specs(plan.num_single, plan.num_written, plan.seed, user.identity, queries)
    parts = [("single turns", singles, lambda spec: make_single_turn(spec, user, plan.num_written, sandbox))]
    if plan.dialogues is not None:
        kinds = rubric_kinds(models.judges_questions)
        specs, hold = dialogue_maker(plan.dialogues, plan.seed, user, models.assistants, kinds, queries)
        parts.append(("dialogues", specs, hold))
    return parts


def rubric_kinds(judges_questions: bool) -> dict[str, str]:
    """Every kind of the library with an instruction as an example and its arguments; `judge` where one can be asked."""
    kinds = {}
    for name, kind in KINDS.items():
        arguments = ", ".join(f"{argument}: {type.__name__}" for argument, type in kind.arguments.items())
        kinds[name] = f"{kind.phrasings[0]} Needs {arguments or 'nothing'}."
    return kinds | ({"judge": "Anything else. Needs question: str."} if judges_questions else {})


def _num_tokens(text: str) -> int:
    return len(text.encode()) // _BYTES_PER_TOKEN


def _report(
    plan: SynthesisPlan, models: Models, made: Synthesis, found: Filtered, failures: Sequence[Failure]
) -> dict[str, Json]:
    """Asked for = kept + dropped + failed. `unfinished` are the items that the same command asks for again."""
    rubrics = [rubric for dialogue in made.dialogues for rubric in dialogue.rubrics]
    turns = [len(dialogue.spec.tactics) for dialogue in found.kept if dialogue.source == MULTI_TURN]
    policy = models.difficulty
    return {
        "asked": len(made.dialogues) + len(made.failures),
        "kept": len(found.kept),
        "kept_by_source": dict(Counter(dialogue.source for dialogue in found.kept)),
        "dropped": dict(Counter(each.reason.value for each in found.dropped)),
        "failed": dict(Counter(each.reason.value for each in made.failures)),
        "unfinished": dict(Counter(f"{each.reason.value}: {each.detail}" for each in failures)),
        "checkers": {
            "admitted": sum(rubric["kind"] == GENERATED for rubric in rubrics),
            "refused": dict(sum((Counter(dialogue.refused) for dialogue in made.dialogues), Counter[str]())),
        },
        "rubrics_mean": fmean(len(dialogue.rubrics) for dialogue in found.kept) if found.kept else None,
        "user_turns_mean": fmean(turns) if turns else None,
        "models": {
            "user": models.user.identity,
            "assistants": [each.identity for each in models.assistants],
            "judge": models.judge.identity,
            "quality": f"{plan.num_teacher_attempts} attempts of {models.quality.identity}",
            "difficulty": f"{plan.num_policy_attempts} attempts of {policy.identity}" if policy else None,
        },
        "seed": plan.seed,
    }
