"""The generators of Reasoning RL, together with the verifiers that grade what they demonstrate (RRL-D1, RRL-R1)."""

import random
from collections import Counter
from itertools import islice

import pytest

from rufus_core.data.generators import arithmetic, puzzles, science
from rufus_core.errors import DataError
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.reasoning import verify_reasoning
from rufus_core.types import Problem

GENERATORS = {"arithmetic": arithmetic, "puzzle": puzzles, "science": science}
each_generator = pytest.mark.parametrize("family", GENERATORS)


@pytest.fixture(scope="module")
def math():
    with MathVerifier() as verifier:
        yield verifier


@each_generator
def test_same_seed_same_problems_and_distinct_ids(family):
    made = list(GENERATORS[family].problems(7, 300, {}))
    assert made == list(GENERATORS[family].problems(7, 300, {}))
    assert made != list(GENERATORS[family].problems(8, 300, {}))
    assert len({problem.id for problem in made}) == 300
    assert len({problem.prompt for problem in made}) == 300
    assert {problem.family for problem in made} == {family}


@each_generator
def test_prompts_are_short_and_hold_several_thousand(family):
    made = list(GENERATORS[family].problems(1, 3000, {}))
    assert len(made) == 3000
    assert max(len(problem.prompt[0].content.split()) for problem in made) <= 20


@pytest.mark.parametrize("family", ["arithmetic", "science"])
def test_words_come_from_a_small_closed_list(family):
    text = " ".join(problem.prompt[0].content for problem in GENERATORS[family].problems(1, 3000, {}))
    words = {word.strip("?.,:") for word in text.split()}
    assert len({word for word in words if word.isalpha()}) <= 80


@each_generator
def test_demonstrations_pass_and_wrong_ones_fail_RRL_R1(family, math):
    rng = random.Random(0)
    for problem in GENERATORS[family].problems(3, 150, {}):
        for wrong in (False, True):
            messages = GENERATORS[family].demonstrate(problem, rng, wrong)
            assert [message.role for message in messages] == ["assistant"]
            assert len((messages[0].reasoning or "").split()) <= 8
            verdict = verify_reasoning(problem, messages[0].content, math)
            assert verdict.passed is not wrong, (problem, messages)


@each_generator
def test_ground_truth_does_not_depend_on_the_seed(family):
    """Equal questions have equal ids, so that a central split by id keeps them together."""
    first = {problem.prompt: problem.id for problem in GENERATORS[family].problems(1, 1500, {})}
    second = {problem.prompt: problem.id for problem in GENERATORS[family].problems(2, 1500, {})}
    shared = first.keys() & second.keys()
    assert shared or family == "science"
    assert all(first[prompt] == second[prompt] for prompt in shared)


def test_both_operations_and_all_results_occur():
    made = list(arithmetic.problems(1, 3000, {}))
    assert {problem.ground_truth["answer"] for problem in made} == {str(n) for n in range(19)}
    signs = Counter(problem.ground_truth["operands"][1] for problem in made)
    assert min(signs.values()) > 1000


def test_puzzles_are_shared_out_over_reasoning_gym_datasets():
    made = Counter(problem.ground_truth["dataset"] for problem in puzzles.problems(1, 900, {}))
    assert made.keys() == puzzles.CONFIGS.keys()
    assert min(made.values()) > 200
    only = puzzles.problems(1, 50, {"datasets": ["simple_equations"]})
    assert {problem.ground_truth["dataset"] for problem in only} == {"simple_equations"}


def test_unknown_dataset_or_option_is_refused():
    with pytest.raises(DataError, match="zebra"):
        puzzles.problems(1, 5, {"datasets": ["zebra"]})
    with pytest.raises(DataError, match="sise"):
        arithmetic.problems(1, 5, {"sise": 3})


def test_a_space_that_is_used_up_is_an_error():
    made = puzzles.problems(1, 10_000, {"datasets": ["spell_backward"]})
    assert len(list(islice(made, 500))) == 500
    with pytest.raises(DataError, match="distinct"):
        list(made)


ONE_SHOT = {"one_shot": True, "max_operand": 19}
NUM_ONE_SHOT = 154


def test_one_shot_sums_are_all_different_and_none_is_the_worked_example():
    made = list(arithmetic.problems(1, NUM_ONE_SHOT, ONE_SHOT))
    assert {problem.family for problem in made} == {"calculation"}
    asked = [tuple(problem.ground_truth["operands"]) for problem in made]
    assert len(set(asked)) == NUM_ONE_SHOT
    assert (7, "+", 5) not in asked
    # 3 + 5 can't be held out where 5 + 3 is trained on
    assert all(b <= a <= 19 and b <= 9 for a, _, b in asked)
    with pytest.raises(DataError, match="only 154 distinct"):
        list(arithmetic.problems(1, NUM_ONE_SHOT + 1, ONE_SHOT))


def test_one_shot_prompts_end_with_the_question_after_one_worked_example():
    problem = next(arithmetic.problems(1, 1, ONE_SHOT))
    assert [message.role for message in problem.prompt] == ["system", "user", "assistant", "user"]
    a, sign, b = problem.ground_truth["operands"]
    assert problem.prompt[1].content == "What is 7 + 5?"
    assert problem.prompt[2].content == "7 + 5 = 12"
    assert problem.prompt[3].content == f"What is {a} {sign} {b}?"


def test_one_shot_demonstrations_pass_and_wrong_ones_fail(math):
    rng = random.Random(0)
    for problem in arithmetic.problems(3, 150, ONE_SHOT):
        for wrong in (False, True):
            (message,) = arithmetic.demonstrate(problem, rng, wrong)
            assert verify_reasoning(problem, message.content, math).passed is not wrong


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("6 + 2 = 8", True),
        ("8", True),
        (r"6 + 2 = \boxed{8}", True),
        ("6 + 2 =8", True),
        ("6 + 2", False),  # equal, and no result
        ("6 + 2 = 6 + 2", False),
        ("6 + 2 = 8 = 9", False),
        ("6 + 2 = 88", False),
        ("", False),
    ],
)
def test_a_calculation_is_graded_by_what_follows_its_last_equals_sign(math, text, passed):
    eight = Problem.build("calculation", "test", [], {"answer": "8"})
    assert verify_reasoning(eight, text, math).passed is passed
