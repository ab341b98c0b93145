"""The constraint library: what it makes passes, what it breaks fails, and sets of constraints have a witness."""

from __future__ import annotations

import random
import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.constraints.compose import compose, find_witness
from rufus_core.data.constraints.library import (
    GROUPS,
    KINDS,
    conflict,
    describe,
    holds,
    kind_of,
    negative,
    positive,
    sample,
)
from rufus_core.data.generators import constraints
from rufus_core.errors import DataError
from rufus_core.rewards.judges import LexicalJudge
from rufus_core.rewards.rubrics import score_rubrics
from rufus_core.types import Json, VerdictKind

SEEDS = 200
PIECES = (
    "word", "Word", " ", "\n", "\n\n", "\t", ".", "!", "?", ",", "- ", "* ", "1. ", "# ", "> ", "| a |", "|---|",
    "```", "`", "**", "*", "[", "]", "(", ")", "{", "}", '"', "“", "<a>", "</a>", "Step 1: ", "Title: ", "P.S.", ";",
    "2024-02-30", "25:61", "10%", "٣", "²", "１", "é", "ß", "İ", "ǅ", "e\u0301", "日本", "שלום", "👩\u200d👧", "\u200b",
    "\u2028", "\r", "\r\n", "\ud800", "&a", "*a", "<<: ", "- [ ] ", "level", "a-b", "it's", "_", "a: ", "======",
    "\ufeff", "\x00",
)  # fmt: skip


def test_there_are_at_least_sixty_kinds_and_no_name_stands_twice():
    assert len(KINDS) == sum(map(len, GROUPS.values())) >= 60


@pytest.mark.parametrize("name", KINDS)
def test_positive_examples_pass_and_negative_ones_fail(name):
    for seed in range(SEEDS):
        rng = random.Random(seed)
        constraint = sample(name, rng)
        right = positive(constraint, rng)
        wrong = negative(constraint, right, rng)
        assert holds(constraint, right), (constraint, right)
        assert not holds(constraint, wrong), (constraint, wrong)


@pytest.mark.parametrize("name", KINDS)
def test_every_phrasing_states_every_argument_IF_D7(name):
    fields = [set(re.findall(r"\{(\w+)\}", phrasing)) for phrasing in KINDS[name].phrasings]
    assert fields
    assert all(found == KINDS[name].arguments.keys() for found in fields)
    said = describe(sample(name, random.Random(1)), random.Random(1))
    assert "{" not in said


def test_examples_are_the_same_for_the_same_seed():
    def made() -> list[str]:
        rng = random.Random(5)
        return [positive(sample(name, rng), rng) for name in KINDS]

    assert made() == made()


@pytest.mark.parametrize("start", range(0, 1000, 250))
def test_every_composed_set_has_a_witness_and_a_text_that_fails_each_IF_D2(start):
    for seed in range(start, start + 250):
        rng = random.Random(seed)
        made = compose(rng, rng.randint(2, 6))
        assert 2 <= len(made.constraints) <= 6
        assert not any(conflict(one, other) for one, other in combinations(made.constraints, 2))
        for constraint in made.constraints:
            assert holds(constraint, made.witness), (constraint, made)
            assert not holds(constraint, negative(constraint, made.witness, rng)), (constraint, made)


@pytest.mark.parametrize(
    "contradiction",
    [
        ({"kind": "include_word", "word": "ship"}, {"kind": "exclude_words", "words": ["wave", "Ship"]}),
        ({"kind": "exclude_letter", "letter": "s"}, {"kind": "first_word", "word": "ship"}),
        ({"kind": "num_numbers", "count": 3}, {"kind": "no_punctuation"}, {"kind": "percentages", "count": 1}),
        ({"kind": "json_object", "keys": ["a"]}, {"kind": "exclude_sign", "sign": ":"}),
    ],
)
def test_a_contradiction_that_no_claim_tells_has_no_witness(contradiction):
    assert not any(conflict(one, other) for one, other in combinations(contradiction, 2))
    assert find_witness(contradiction, random.Random(0)) is None


def test_kinds_that_settle_the_same_thing_conflict():
    rng = random.Random(0)
    for one, other in [
        ("num_words", "max_words"),
        ("all_lowercase", "all_uppercase"),
        ("json_object", "num_paragraphs"),
    ]:
        assert conflict(sample(one, rng), sample(other, rng))
    assert conflict({"kind": "include_word", "word": "a"}, {"kind": "include_word", "word": "b"})


def fuzzed(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.choice((0, 1, 3, 10, 40))))


@pytest.mark.parametrize("name", KINDS)
def test_a_thousand_fuzzed_answers_get_a_boolean_each(name):
    rng = random.Random(name)
    asked = [sample(name, rng) for _ in range(10)]
    for number in range(1000):
        constraint, text = asked[number % 10], fuzzed(rng)
        verdict = holds(constraint, text)
        assert isinstance(verdict, bool)
        assert verdict is holds(constraint, text)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", KINDS)
def test_huge_answers_are_read_in_linear_time(name):
    """Each of these would take hours where a checker is quadratic: the test's own time limit is the assertion."""
    constraint = sample(name, random.Random(1))
    for piece in (
        "a",
        " ",
        "\n",
        "*",
        "(",
        "[",
        '"',
        "`",
        "- a\n",
        "1",
        "1,",
        "a-",
        ". ",
        "| a ",
        "{",
        "<a>",
        "# ",
        "\U0001f600",
    ):
        assert isinstance(holds(constraint, piece * 50_000), bool)


@given(st.sampled_from(sorted(KINDS)), st.text(max_size=60))
def test_checkers_take_any_text(name, text):
    assert isinstance(holds(sample(name, random.Random(0)), text), bool)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"kind": "rhyme"}, "unknown constraint 'rhyme'"),
        ({}, "unknown constraint None"),
        ({"kind": ["num_words"]}, "unknown constraint"),
        ({"kind": "num_words"}, "lacks 'count'"),
        ({"kind": "num_words", "count": "9"}, "whole number"),
        ({"kind": "num_words", "count": True}, "whole number"),
        ({"kind": "num_words", "count": -1}, "whole number"),
        ({"kind": "include_word", "word": ""}, "a text"),
        ({"kind": "include_words", "words": "ship"}, "list of texts"),
        ({"kind": "include_words", "words": []}, "list of texts"),
        ({"kind": "script_words", "count": 1, "script": "Klingon"}, "unknown script"),
    ],
)
def test_what_is_unknown_or_incomplete_raises(constraint, message):
    with pytest.raises(DataError, match=message):
        kind_of(constraint)


@pytest.mark.parametrize(
    ("constraint", "right", "wrong"),
    [
        ({"kind": "num_words", "count": 3}, "it's well-known, là", "one two"),
        ({"kind": "num_sentences", "count": 3}, 'He said "No." Then?\nYes', "Pi is 3.14."),
        ({"kind": "num_paragraphs", "count": 2}, "a\nb\n \n\nc", "a\nb"),
        ({"kind": "word_exactly", "word": "Straße", "count": 1}, "die STRASSE dort", "die Straßen"),
        ({"kind": "title_case"}, "A Good-day Élan 3x", "A good Day"),
        ({"kind": "all_lowercase"}, "ça va, 3 日", "ǅ"),
        ({"kind": "no_digits"}, "three", "٣"),
        ({"kind": "iso_dates", "count": 1}, "on 2024-02-29", "on 2023-02-29"),
        ({"kind": "clock_times", "count": 1}, "at 23:59", "at 24:00 or 1:2:30"),
        ({"kind": "json_object", "keys": ["a"]}, '{"a": [1]}', '```json\n{"a": 1}\n```'),
        ({"kind": "yaml_mapping", "keys": ["a", "b"]}, "a: 1\nb: [x, y]", "a: 1\nb: [x"),
        ({"kind": "csv_table", "columns": 2, "rows": 1}, 'a,b\n"1,2",3', "a,b\n1,2,3"),
        ({"kind": "numbered_list", "count": 2}, "1. a\n2) b", "1. a\n3. b"),
        ({"kind": "table", "columns": 2, "rows": 1}, "| a | b |\n|:-|-:|\n| c | d |", "| a | b |\n| c | d |"),
        ({"kind": "code_block", "language": "python"}, "x\n```python\n# a\n```", "```python\nnot closed"),
        ({"kind": "bold", "count": 2}, "**a** and **b c**", "**a** and **b"),
        ({"kind": "acrostic", "word": "ABC"}, "an\n\n- bee\nCan", "an\nbee"),
        ({"kind": "alliteration", "letter": "b", "count": 3}, "a Big, bad Bear", "big bad a bear"),
        ({"kind": "palindromes", "count": 2}, "Level, noon", "level aa 121"),
        ({"kind": "script_words", "script": "Hebrew", "count": 1}, "so שלום it is", "so shalom it is"),
        ({"kind": "num_emoji", "count": 2}, "🚀a🌍", "🚀"),
        ({"kind": "dialogue", "names": ["Ada", "Bo"]}, "Ada: hi\n\nBo: hi\nAda: so", "Ada: hi\nAda: hi"),
        ({"kind": "sections", "names": ["A", "B"]}, "## A\nx\n# B\ny", "## B\nx\n## A"),
        ({"kind": "rising_lines", "count": 2}, "a\n\nb c", "a b\nc"),
        ({"kind": "words_in_order", "words": ["a", "b"]}, "a c b a", "b a b"),
    ],
)
def test_kinds_tell_right_from_wrong(constraint, right, wrong):
    assert holds(constraint, right)
    assert not holds(constraint, wrong)


def test_problems_ask_for_all_their_constraints_and_the_verifier_pays_the_witness_IF_R1():
    rng = random.Random(0)
    for problem in constraints.problems(3, 60, {}):
        rubrics: list[Json] = problem.ground_truth["rubrics"]
        (good,), (bad,) = (constraints.demonstrate(problem, rng, wrong) for wrong in (False, True))
        verdict = score_rubrics(problem, good.content, LexicalJudge())
        assert verdict.kind is VerdictKind.PASS
        assert verdict.parts == {f"{i}_{rubric['kind']}": 1.0 for i, rubric in enumerate(rubrics)}
        assert score_rubrics(problem, bad.content, LexicalJudge()).kind is VerdictKind.FAIL
        asked = problem.prompt[0].content
        assert any(query in asked for query in constraints.QUERIES)
        for rubric in rubrics:
            assert all(str(value) in asked for value in rubric.values() if isinstance(value, int))


def test_queries_and_numbers_of_constraints_are_options():
    options = {"queries": ["Why?"], "min_constraints": 3, "max_constraints": 3}
    for problem in constraints.problems(1, 10, options):
        assert "Why?" in problem.prompt[0].content
        assert len(problem.ground_truth["rubrics"]) == 3
    for wrong in ({"min_constraints": 1}, {"max_constraints": 7}, {"queries": []}, {"queries": [3]}, {"size": 2}):
        with pytest.raises(DataError):
            constraints.problems(1, 1, wrong)
