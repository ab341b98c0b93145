"""reasoning-gym's own checkers decide (RRL-R1)."""

import pytest
import reasoning_gym

from rufus_core.errors import DataError
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.puzzles import RUNS_ANSWER, verify_puzzle
from rufus_core.rewards.reasoning import verify_reasoning
from rufus_core.types import Message, Problem, VerdictKind


def puzzle(name, **config):
    return {"dataset": name, "config": config, "entry": reasoning_gym.create_dataset(name, seed=4, size=1, **config)[0]}


@pytest.mark.parametrize("name", ["spell_backward", "number_filtering", "chain_sum", "zebra_puzzles", "syllogism"])
def test_only_the_full_score_passes(name):
    made = puzzle(name)
    answer = made["entry"]["answer"]
    assert verify_puzzle(made, answer).score == 1.0
    for wrong in ("", "?", answer + " " + answer, answer[:-1]):
        verdict = verify_puzzle(made, wrong)
        assert (verdict.kind, verdict.score) == (VerdictKind.FAIL, 0.0)


def test_a_checker_may_accept_another_spelling():
    made = puzzle("spell_backward")
    assert verify_puzzle(made, made["entry"]["answer"].upper()).passed


def test_unknown_datasets_and_configurations_raise():
    with pytest.raises(DataError, match="nonesuch"):
        verify_puzzle({"dataset": "nonesuch", "config": {}, "entry": {"answer": "1"}}, "1")
    with pytest.raises(DataError, match="min_word_len"):
        verify_puzzle({"dataset": "spell_backward", "config": {"min_word_len": 0}, "entry": {"answer": "a"}}, "a")
    with pytest.raises(DataError, match="sise"):
        verify_puzzle({"dataset": "spell_backward", "config": {"sise": 0}, "entry": {"answer": "a"}}, "a")


@pytest.mark.parametrize("name", sorted(RUNS_ANSWER))
def test_checkers_that_would_run_the_answer_are_refused(name, tmp_path):
    target = tmp_path / "touched"
    with pytest.raises(DataError, match="code"):
        verify_puzzle({"dataset": name, "config": {}, "entry": {"answer": "1"}}, f"open({str(target)!r}, 'w')")
    assert not target.exists()


def test_refused_names_exist_in_this_version_of_reasoning_gym():
    assert set(reasoning_gym.factory.DATASETS) >= RUNS_ANSWER


def test_unknown_families_raise():
    problem = Problem.build("astrology", "test", [Message(role="user", content="?")], {"answer": "1"})
    with MathVerifier() as math, pytest.raises(DataError, match="astrology"):
        verify_reasoning(problem, "1", math)
