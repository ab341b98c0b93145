"""Rubrics of Instruction-Following RL (IF-R1, IF-R2): each holds or not, and an answer passes iff all hold.

A rubric is `{"kind": ..., arguments}`. Code decides every kind of the constraint library; the kinds in `JUDGED` go to
the judge as they are. Rubrics see only the text after thinking.
"""

from __future__ import annotations

from collections.abc import Mapping

from rufus_core.data.constraints.library import holds, kind_of
from rufus_core.errors import InfrastructureError
from rufus_core.ports import Judge
from rufus_core.rewards.extract import Extraction, extract
from rufus_core.rewards.timed import timed
from rufus_core.types import Json, Problem, Verdict

Rubric = Mapping[str, Json]

JUDGED = frozenset({"topic", "polite"})
JUDGE_THRESHOLD = 0.5


@timed
def score_rubrics(problem: Problem, final_text: str | None, judge: Judge) -> Verdict:
    """`parts` has 1.0 or 0.0 for each rubric, keyed `index_kind`; an unfinished or empty answer fails.

    Without a judge's verdict the rollout is aborted, never 0.

    Raises:
        DataError: an unknown kind of rubric, or one whose arguments are missing or of a wrong type.
    """
    rubrics: list[Rubric] = problem.ground_truth["rubrics"]
    if not rubrics:
        return Verdict.unscorable("there are no rubrics")
    for rubric in rubrics:
        if rubric.get("kind") not in JUDGED:
            kind_of(rubric)
    text = extract(final_text, Extraction.TEXT)
    if text is None:
        return Verdict.binary(False, "no answer")
    try:
        parts = {
            f"{index}_{rubric['kind']}": float(_holds(rubric, text, judge)) for index, rubric in enumerate(rubrics)
        }
    except InfrastructureError as error:
        return Verdict.aborted(f"the judge gave no verdict: {error}")
    failed = [name for name, held in parts.items() if not held]
    return Verdict.binary(not failed, ", ".join(failed), text, parts)


def _holds(rubric: Rubric, text: str, judge: Judge) -> bool:
    if rubric["kind"] in JUDGED:
        return judge.score(rubric, text) >= JUDGE_THRESHOLD
    return holds(rubric, text)
