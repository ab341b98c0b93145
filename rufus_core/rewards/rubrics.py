"""Rubrics of Instruction-Following RL (IF-R1, IF-R2): each holds or not, and an answer passes iff all hold.

A rubric is `{"kind": ..., arguments}`. Code decides every kind in `RUBRICS`; the kinds in `JUDGED` go to the judge as
they are. Rubrics see only the text after thinking. Case never matters; signs around a word are no part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rufus_core.errors import DataError, InfrastructureError
from rufus_core.ports import Judge
from rufus_core.rewards.extract import Extraction, extract
from rufus_core.rewards.timed import timed
from rufus_core.types import Json, Problem, Verdict

Rubric = Mapping[str, Json]

JUDGED = frozenset({"topic", "polite"})
JUDGE_THRESHOLD = 0.5

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


@timed
def score_rubrics(problem: Problem, final_text: str | None, judge: Judge) -> Verdict:
    """`parts` has 1.0 or 0.0 for each rubric, keyed `index_kind`; an unfinished or empty answer fails.

    Without a judge's verdict the rollout is aborted, never 0.

    Raises:
        DataError: an unknown kind of rubric, or one without its arguments.
    """
    rubrics: list[Rubric] = problem.ground_truth["rubrics"]
    if not rubrics:
        return Verdict.unscorable("there are no rubrics")
    for rubric in rubrics:
        if rubric["kind"] not in RUBRICS and rubric["kind"] not in JUDGED:
            raise DataError(f"unknown rubric {rubric['kind']!r}", hint=f"known: {sorted(RUBRICS.keys() | JUDGED)}")
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
    try:
        return RUBRICS[rubric["kind"]](rubric, text)
    except KeyError as error:
        raise DataError(f"the rubric {rubric['kind']!r} lacks {error}") from error


def words_of(text: str) -> list[str]:
    """The words in order, casefolded and without the signs around them."""
    return _WORD.findall(text.casefold())


def _num_words(rubric: Rubric, text: str) -> bool:
    return len(words_of(text)) == int(rubric["count"])


def _first_word(rubric: Rubric, text: str) -> bool:
    return words_of(text)[:1] == words_of(rubric["word"])


def _last_word(rubric: Rubric, text: str) -> bool:
    return words_of(text)[-1:] == words_of(rubric["word"])


def _include_word(rubric: Rubric, text: str) -> bool:
    return str(rubric["word"]).casefold() in words_of(text)


def _exclude_word(rubric: Rubric, text: str) -> bool:
    return str(rubric["word"]).casefold() not in words_of(text)


def _end_sign(rubric: Rubric, text: str) -> bool:
    return text.endswith(rubric["sign"])


def _commas(_rubric: Rubric, text: str) -> bool:
    """A comma between any two neighbouring words."""
    return all(len(words_of(part)) == 1 for part in text.split(","))


RUBRICS: dict[str, Callable[[Rubric, str], bool]] = {
    "num_words": _num_words,
    "first_word": _first_word,
    "last_word": _last_word,
    "include_word": _include_word,
    "exclude_word": _exclude_word,
    "end_sign": _end_sign,
    "commas": _commas,
}
