"""What a problem is about: its family and fine-grained domain, by a keyword heuristic (RRL-D2, RRL-D3).

A tag is computed when a set is looked at. It is no part of a problem, so that equal problems keep equal ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import yaml

from rufus_core.data.puzzle_kinds import category_of
from rufus_core.types import Problem

MATH, SCIENCE, PUZZLES = FAMILIES = ("math", "science", "puzzles")  # T5
DECLARED = "domain"  # the field of a ground truth that is believed
_UNSURE = {MATH: "algebra", SCIENCE: "physics", PUZZLES: "other"}  # where no phrase is found
_WEIGHTS = {"strong": 3, "weak": 1}
_WORD = re.compile(r"[a-z]+|\d+|[^\sa-z\d\\]")  # the backslash of a LaTeX command is no part of it
# What a verifier's family says of the subject. `arithmetic` grades any question with a short answer.
_CANDIDATES = {
    "arithmetic": FAMILIES,
    "math": (MATH,),
    "calculation": (MATH,),
    "science": (SCIENCE,),
    "puzzle": (PUZZLES,),
}


class Tag(NamedTuple):
    """For example `math`, `number_theory`."""

    family: str
    domain: str


class _Phrase(NamedTuple):
    tag: Tag
    text: str
    weight: int
    words: tuple[str, ...]


def tag_problem(problem: Problem) -> Tag | None:
    """The tag of a problem of Reasoning RL; None for one of another stage.

    The domain is the one that the ground truth declares, else the category of the puzzle's reasoning-gym dataset, else
    what the prompt's words say, within the families that the verifier's family leaves open.
    """
    families = _CANDIDATES.get(problem.family)
    if families is None:
        return None
    declared, dataset = problem.ground_truth.get(DECLARED), problem.ground_truth.get("dataset")
    if isinstance(dataset, str) and not declared and (category := category_of(dataset)):
        return Tag(PUZZLES, category)
    found = tag_text("\n".join(message.content for message in problem.prompt), families)
    if isinstance(declared, str) and declared.strip():
        return Tag(_family_of().get(declared, found.family), declared)
    return found


def tag_text(text: str, families: Sequence[str] = FAMILIES) -> Tag:
    """The domain of these families of whose phrases a text holds most; each phrase counts once."""
    words = tuple(_WORD.findall(text.lower()))
    held = {
        (phrase.tag, phrase.text): phrase.weight
        for place, word in enumerate(words)
        for phrase in _phrases().get(word, ())
        if words[place : place + len(phrase.words)] == phrase.words
    }
    scores = {Tag(family, domain): 0 for domain, family in _family_of().items() if family in families}
    for (tag, _), weight in held.items():
        if tag in scores:
            scores[tag] += weight
    best = max(scores, key=lambda tag: scores[tag])  # of equal ones the first
    return best if scores[best] else Tag(families[0], _UNSURE[families[0]])


@cache
def _table() -> dict[str, dict[str, dict[str, list[str]]]]:
    text = files("rufus_core.data").joinpath("domains.yaml").read_text(encoding="utf-8")
    table: dict[str, dict[str, dict[str, list[str]]]] = yaml.safe_load(text)
    return table


@cache
def _family_of() -> dict[str, str]:
    return {domain: family for family, domains in _table().items() for domain in domains}


@cache
def _phrases() -> dict[str, list[_Phrase]]:
    """All phrases by their first word, each also in the plural."""
    index: dict[str, list[_Phrase]] = {}
    for family, domains in _table().items():
        for domain, phrases in domains.items():
            for strength, weight in _WEIGHTS.items():
                for text in phrases[strength]:
                    *start, last = _WORD.findall(text)
                    for ending in ("", "s", "es") if last.isalpha() else ("",):
                        words = (*start, last + ending)
                        index.setdefault(words[0], []).append(_Phrase(Tag(family, domain), text, weight, words))
    return index
