"""Generated Coding RL problems: right demonstrations pass the real verifier, wrong ones don't."""

import random

import pytest

from rufus_core.data.code_records import read_tests, statement_key
from rufus_core.data.generators import python_problems
from rufus_core.errors import DataError
from rufus_core.rewards import code as rewards
from rufus_core.sandbox.interpreter import InterpreterPool
from tests.sandbox.real import require_isolation

MAKERS = [python_problems.functions, python_problems.programs]


@pytest.fixture(scope="module")
def pool():
    require_isolation()
    with InterpreterPool(1) as pool:
        yield pool


@pytest.mark.parametrize("make", MAKERS)
def test_several_thousand_distinct_and_deterministic(make):
    problems = list(make(3, 4000, {}))
    assert len({problem.prompt[-1].content for problem in problems}) == 4000
    assert [problem.id for problem in make(3, 50, {})] == [problem.id for problem in problems[:50]]
    assert next(make(4, 1, {})).id != problems[0].id
    assert all(3 <= len(read_tests(problem.ground_truth).tests) <= 5 for problem in problems)


@pytest.mark.parametrize("make", MAKERS)
def test_prompts_are_short(make):
    for problem in make(0, 300, {}):
        system, user = problem.prompt
        assert len(system.content.split()) <= 8
        assert len(user.content.split()) <= 14


def test_each_modality_has_a_system_prompt_that_asks_for_one_block_CRL_D2():
    function, program = (next(make(0, 1, {})).prompt[0].content for make in MAKERS)
    assert function != program
    assert "one python block" in function
    assert "one python block" in program


@pytest.mark.parametrize("make", MAKERS)
def test_demonstrations_against_the_verifier(make, pool):
    rng = random.Random(0)
    for problem in make(1, 60, {}):
        (right,) = python_problems.demonstrate(problem, rng, False)
        (wrong,) = python_problems.demonstrate(problem, rng, True)
        assert len(right.reasoning.split()) <= 8
        assert rewards.tests_pass(problem, right.content, pool).passed, right.content
        assert not rewards.tests_pass(problem, wrong.content, pool).passed, wrong.content


def test_unknown_options_and_a_space_too_small_are_refused():
    with pytest.raises(DataError, match="colour"):
        next(python_problems.functions(0, 1, {"colour": 1}))


def test_dedup_key_ignores_case_and_whitespace_CRL_D4():
    assert statement_key("Add  two\nnumbers ") == statement_key("add TWO numbers")
    assert statement_key("Add two numbers") != statement_key("Add two number")
    assert len(statement_key("x")) == 64
