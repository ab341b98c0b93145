"""Family and domain of a problem by keywords (RRL-D2, RRL-D3), measured on public sets that name their subjects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.domains import FAMILIES, Tag, tag_problem, tag_text
from rufus_core.data.generators import puzzles
from rufus_core.data.jsonl import read_rows
from rufus_core.types import Json, Message, Problem
from tests.data.real import real

# What each subject of MATH is called here. Prealgebra is a level: it holds elementary geometry and algebra too.
SUBJECTS = {
    "Algebra": {"algebra"},
    "Intermediate Algebra": {"algebra"},
    "Number Theory": {"number_theory"},
    "Geometry": {"geometry"},
    "Precalculus": {"trigonometry", "linear_algebra"},
    "Counting & Probability": {"combinatorics", "probability"},
    "Prealgebra": {"arithmetic"},
}
MATH_COURSES = ("Differential Equations",)


def problem(text: str, family: str = "arithmetic", **truth: Json) -> Problem:
    return Problem.build(family, "mine", [Message(role="user", content=text)], truth)


@pytest.mark.parametrize(
    ("text", "family", "domain"),
    [
        ("Find the remainder when 7^{100} is divided by 13.", "math", "number_theory"),
        ("Triangle ABC has a right angle at B. Find the area of the triangle.", "math", "geometry"),
        (r"Evaluate \[\int_0^1 x e^x \, dx\] and the derivative of its integrand.", "math", "calculus"),
        ("In how many ways can a committee of 3 be chosen from 9 people?", "math", "combinatorics"),
        ("Two fair dice are rolled. What is the probability of a sum of 7?", "math", "probability"),
        (r"Find all roots of the polynomial $x^3 - 6x^2 + 11x - 6$.", "math", "algebra"),
        ("Natalia sells 48 clips for 5 cents each. How much money does she have left?", "math", "arithmetic"),
        ("A projectile has a velocity of 3 m/s. What is its kinetic energy?", "science", "physics"),
        ("What is the molarity of the acid after titration?", "science", "chemistry"),
        ("Which enzyme copies DNA in the cell?", "science", "biology"),
        ("What is the luminosity of a star of two solar masses?", "science", "astronomy"),
        ("On an island each person is a knight or a knave. Who is the liar?", "puzzles", "logic"),
        ("Solve this sudoku board.", "puzzles", "games"),
    ],
)
def test_words_tell_family_and_domain_RRL_D2_RRL_D3(text: str, family: str, domain: str) -> None:
    assert tag_problem(problem(text)) == Tag(family, domain)


def test_the_verifier_s_family_narrows_what_words_may_lead_to_RRL_D3() -> None:
    text = "A triangle of force has a charge."
    tags = [tag_problem(problem(text, family)) for family in ("math", "science", "puzzle")]
    assert [tag and tag.family for tag in tags] == ["math", "science", "puzzles"]
    assert tag_problem(problem(text, "python_program")) is None


def test_a_declared_domain_is_kept_and_the_family_follows_it_RRL_D2() -> None:
    assert tag_problem(problem("Solve the sudoku.", domain="chemistry")) == Tag("science", "chemistry")
    assert tag_problem(problem("Solve the sudoku.", domain="sudokus")) == Tag("puzzles", "sudokus")
    assert tag_problem(problem("Solve the sudoku.", domain=" ")) == Tag("puzzles", "games")
    assert tag_problem(problem("Solve the sudoku.", domain=3)) == Tag("puzzles", "games")


def test_a_puzzle_has_its_dataset_s_category_RRL_D2() -> None:
    names = {"spell_backward": "algorithmic", "simple_equations": "algebra", "tower_of_hanoi": "games"}
    for name, category in names.items():
        (one,) = puzzles.problems(0, 1, {"datasets": [name]})
        assert tag_problem(one) == Tag("puzzles", category)
    assert tag_problem(problem("Spell it.", "puzzle", dataset="no_such_set")) == Tag("puzzles", "algorithmic")


def test_a_phrase_counts_once_and_as_a_whole_word() -> None:
    assert tag_text("mod " * 50 + "triangle circle") == Tag("math", "geometry")
    assert tag_text("the startled primed circlet modest").family == tag_text("").family
    assert tag_text("two triangles") == tag_text("two TRIANGLE") == Tag("math", "geometry")


@given(st.text(), st.lists(st.sampled_from(FAMILIES), min_size=1, unique=True))
def test_any_text_has_a_tag_of_the_families_asked_for(text: str, families: list[str]) -> None:
    tag = tag_text(text, families)
    assert tag.family in families
    assert tag.domain
    assert tag == tag_text(text, families)


def unseen_half() -> Iterator[dict[str, Json]]:
    """The half of MATH-500 that the keywords were not chosen on."""
    for _, row in read_rows(real("math/math500_with_solutions.jsonl")):
        if hashlib.sha256(row["unique_id"].encode()).digest()[0] % 2:
            yield row


def test_the_subjects_of_math_are_found_in_the_unseen_half_RRL_D2() -> None:
    """151 of 198 that have a subject, 160 of 239 with Prealgebra; always saying algebra gives 99 of either."""
    right: dict[bool, list[bool]] = {True: [], False: []}
    for row in unseen_half():
        tag = tag_text(row["problem"])
        right[row["subject"] == "Prealgebra"].append(tag.domain in SUBJECTS[row["subject"]])
        assert tag.family == "math"
    assert (len(right[False]), len(right[True])) == (198, 41)
    assert sum(right[False]) / 198 >= 0.75
    assert sum(right[False] + right[True]) / 239 >= 0.65


def test_families_of_public_problems_RRL_D3() -> None:
    """College science and grade school problems; the science words were chosen with this file in view."""
    courses = [row for _, row in read_rows(real("math/test.jsonl"))]
    science = [row for row in courses if not row["type"].startswith(MATH_COURSES)]
    assert len(science) == 224
    assert sum(tag_text(row["problem"]).family == "science" for row in science) / 224 >= 0.75
    grade_school = [tag_text(row["question"]) for _, row in read_rows(real("gsm8k/test.jsonl"))]
    assert sum(tag.family == "math" for tag in grade_school) / len(grade_school) >= 0.98
    assert sum(tag.domain == "arithmetic" for tag in grade_school) / len(grade_school) >= 0.9
