"""reasoning-gym's own checkers decide, or stricter rules of ours (RRL-R1)."""

import json

import pytest
import reasoning_gym

from rufus_core.data.generators import puzzles
from rufus_core.data.puzzle_kinds import REFUSED
from rufus_core.errors import DataError
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.puzzle_rules import evaluate
from rufus_core.rewards.puzzles import RULES, RUNS_ANSWER, verify_puzzle
from rufus_core.rewards.reasoning import verify_reasoning
from rufus_core.types import Message, Problem, VerdictKind

USABLE = sorted(set(reasoning_gym.factory.DATASETS) - set(REFUSED))
# Their checkers read what they are after out of the answer, and leave the rest.
READS_A_PART = {
    "kakurasu",
    "knights_knaves",
    "letter_jumble",
    "polynomial_equations",
    "quantum_lock",
    "sokoban",
    "survo",
}


def puzzle(name, **config):
    entry = reasoning_gym.create_dataset(name, seed=4, size=1, **config)[0]
    return {"dataset": name, "config": config, "entry": json.loads(json.dumps(entry))}


@pytest.mark.parametrize("name", USABLE)
def test_only_the_full_score_passes(name):
    made = puzzle(name)
    answer = made["entry"]["answer"]
    assert verify_puzzle(made, answer).score == 1.0
    for wrong in ("", "?", "12345", "nan", "nan+2i", "no idea", "not " + answer, f"{answer} {answer}"):
        if wrong == answer or (answer in wrong and name in READS_A_PART):
            continue
        verdict = verify_puzzle(made, wrong)
        assert (verdict.kind, verdict.score) == (VerdictKind.FAIL, 0.0), wrong


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_agrees_with_their_full_score_on_their_own_answers(name):
    dataset = reasoning_gym.create_dataset(name, seed=9, size=20)
    for entry in dataset:
        made = {"dataset": name, "config": {}, "entry": json.loads(json.dumps(entry))}
        assert verify_puzzle(made, entry["answer"]).passed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("8 / 3 * 3", 8),
        ("-2 - -3", 1),
        ("1 / 0", None),
        ("2 ** 3", None),
        ("", None),
        ("(1", None),
        ("1 2", None),
        ("1 +", None),
        ("__import__('os')", None),
        ("(" * 5000, None),
    ],
)
def test_arithmetic_is_worked_out_without_running_it(text, value):
    assert evaluate(text)[0] == value


def test_countdown_and_24_must_use_the_given_numbers():
    made = puzzle("puzzle24")
    made["entry"]["metadata"]["numbers"] = [8, 3, 1, 1]
    assert verify_puzzle(made, "8 * 3 * 1 * 1").passed
    assert not verify_puzzle(made, "6 * 4 * 1 * 1").passed
    assert not verify_puzzle(made, "8 * 3").passed


@pytest.mark.parametrize(
    ("answer", "passed"), [("0.25", True), ("1/4", True), ("0.2", False), ("1e-1", False), ("0.25 1", False)]
)
def test_a_probability_is_one_number(answer, passed):
    made = puzzle("coin_flip")
    made["entry"]["answer"] = "0.25"
    assert verify_puzzle(made, answer).passed is passed


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


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_runs_no_answer(name, tmp_path):
    target = tmp_path / "touched"
    assert not verify_puzzle(puzzle(name), f"[open({str(target)!r}, 'w')]").passed
    assert not target.exists()


def test_refused_names_exist_in_this_version_of_reasoning_gym():
    assert set(reasoning_gym.factory.DATASETS) >= set(REFUSED) >= RUNS_ANSWER


def test_any_usable_dataset_makes_problems_that_its_demonstrations_solve():
    names = ["word_sorting", "countdown", "n_queens", "zebra_puzzles"]
    made = list(puzzles.problems(5, 12, {"datasets": names}))
    assert {problem.ground_truth["dataset"] for problem in made} == set(names)
    assert made == list(puzzles.problems(5, 12, {"datasets": names}))
    with MathVerifier() as math:
        for problem in made:
            for wrong in (False, True):
                (message,) = puzzles.demonstrate(problem, None, wrong)
                assert verify_reasoning(problem, message.content, math).passed is not wrong
    for refused in (*REFUSED, "nonesuch"):
        with pytest.raises(DataError, match=refused):
            puzzles.problems(5, 1, {"datasets": [refused]})


def test_unknown_families_raise():
    problem = Problem.build("astrology", "test", [Message(role="user", content="?")], {"answer": "1"})
    with MathVerifier() as math, pytest.raises(DataError, match="astrology"):
        verify_reasoning(problem, "1", math)
