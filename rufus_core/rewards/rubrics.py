"""Rubrics of Instruction-Following RL (IF-R1, IF-R2): each holds or not, and an answer passes iff all hold.

A rubric is `{"kind": ..., arguments}`. Code decides every kind of the constraint library; a checker that a teacher
wrote (`generated`) runs in a sandbox; the kinds in `JUDGED` go to the judge as they are, with the conversation. Rubrics
see only the text after thinking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rufus_core.data.constraints.library import holds, kind_of
from rufus_core.errors import ConfigError, DataError, InfrastructureError
from rufus_core.ports.judging import Judge
from rufus_core.ports.programs import CodeSandbox
from rufus_core.rewards.extract import Extraction, extract
from rufus_core.rewards.generated import GENERATED, holds_generated, require_source, rubric_checker
from rufus_core.rewards.timed import timed
from rufus_core.types import Json, Problem, Verdict

Rubric = Mapping[str, Json]

# What the judge decides, and the text that it needs for it: `judge` asks its `question` and is for a model alone
JUDGED: dict[str, str | None] = {"topic": "topic", "polite": None, "judge": "question"}


def check_rubric(rubric: Rubric) -> None:
    """Raises DataError for an unknown kind, and for arguments that are missing, of a wrong type, or refused source."""
    kind = rubric.get("kind")
    if kind == GENERATED:
        require_source(rubric_checker(rubric))
    elif isinstance(kind, str) and kind in JUDGED:
        field = JUDGED[kind]
        if field is not None and not isinstance(rubric.get(field), str):
            raise DataError(f"the rubric {kind!r} needs the text `{field}`")
    else:
        kind_of(rubric)


@timed
def score_rubrics(
    problem: Problem, final_text: str | None, judge: Judge, sandbox: Callable[[], CodeSandbox] | None = None
) -> Verdict:
    """`parts` has 1.0 or 0.0 for each rubric, keyed `index_kind`; an unfinished or empty answer fails.

    Without a judge's verdict, or a sandbox that answers, the rollout is aborted, never 0.

    Args:
        sandbox: gives the one that generated checkers run in; called only where there is such a rubric.

    Raises:
        ConfigError: a checker is to be run, and there is no sandbox.
        DataError: an unknown kind of rubric, or one whose arguments are missing or of a wrong type.
        SandboxUnavailable: a checker is to be run, and this machine can't isolate it.
    """
    rubrics = problem.ground_truth.get("rubrics")
    if not isinstance(rubrics, list) or not rubrics or not all(isinstance(rubric, dict) for rubric in rubrics):
        return Verdict.unscorable("the record has no `rubrics`")
    for rubric in rubrics:
        check_rubric(rubric)
    text = extract(final_text, Extraction.TEXT)
    if text is None:
        return Verdict.binary(False, "no answer")
    try:
        parts = {
            f"{index}_{rubric['kind']}": float(_holds(rubric, problem, text, judge, sandbox))
            for index, rubric in enumerate(rubrics)
        }
    except InfrastructureError as error:
        return Verdict.aborted(str(error))
    failed = [name for name, held in parts.items() if not held]
    return Verdict.binary(not failed, ", ".join(failed), text, parts)


def _holds(
    rubric: Rubric, problem: Problem, text: str, judge: Judge, sandbox: Callable[[], CodeSandbox] | None
) -> bool:
    if rubric["kind"] in JUDGED:
        return judge.holds(rubric, problem.prompt, text)
    if rubric["kind"] == GENERATED:
        if sandbox is None:
            raise ConfigError("a generated checker needs a sandbox", hint="give `score_rubrics` one")
        return holds_generated(rubric, text, sandbox())
    return holds(rubric, text)
