"""A problem set in numbers: short labels, modalities, platforms, constraints and turns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rufus_core.evaluation.problem_sets import SetFacts, preference_candidates, summarise
from rufus_core.types import Json, Message, Problem


def facts(*problems: Problem) -> SetFacts:
    return summarise(problems, lambda texts: [len(text.split()) for text in texts])


def problem(truth: dict[str, Json], family: str = "arithmetic", prompt: Sequence[tuple[str, str]] = ()) -> Problem:
    turns = prompt or [("user", str(truth))]
    messages = [Message.model_validate({"role": role, "content": text}) for role, text in turns]
    return Problem.build(family, "mine", messages, truth)


def test_the_share_and_median_of_short_labels_are_over_the_whole_set_RRL_D6() -> None:
    labels = ["1", "one two three", "a b c d e", " ".join("x" * 32), " ".join("y" * 33)]
    puzzle = problem({"dataset": "sudoku", "config": {}, "entry": {}}, "puzzle")
    answers = facts(*(problem({"answer": label}) for label in labels), puzzle).answers
    assert answers is not None
    assert answers.num_short == 4  # up to 32 words; the one of 33 and the puzzle aren't answered by a label
    assert answers.share == pytest.approx(4 / 6)
    assert answers.median_tokens == 4
    assert facts(puzzle).answers is None


def code(modality: str, num_tests: int, **truth: Json) -> Problem:
    return problem({"modality": modality, "tests": ["assert f()"] * num_tests, **truth}, "python_function")


def test_modalities_have_shares_and_tests_CRL_D1() -> None:
    found = facts(*(code("functional", n) for n in (1, 2, 9)), code("stdin_stdout", 4))
    assert [(group.modality, group.num_problems, group.share) for group in found.groups] == [
        ("functional", 3, 0.75),
        ("stdin_stdout", 1, 0.25),
    ]
    assert [(each.modality, each.least, each.median, each.most) for each in found.tests] == [
        ("functional", 1, 2, 9),
        ("stdin_stdout", 4, 4, 4),
    ]


def test_the_platforms_of_coding_problems_are_counted_largest_first_CRL_D9() -> None:
    named = [("platform", "AtCoder"), ("url", "https://codeforces.com/problemset/1"), ("source", "Codeforces round")]
    found = facts(*(code("functional", n, **{name: text}) for n, (name, text) in enumerate(named, 1)), code("x", 7))
    assert list(found.platforms.items()) == [("codeforces", 2), ("atcoder", 1)]
    assert facts(problem({"answer": "1", "source": "codeforces"})).platforms == {}


def test_rubrics_and_user_turns_have_means_IF_D1() -> None:
    long = [("system", "Be brief."), *[("user", "a"), ("assistant", "b")] * 3, ("user", "c")]
    found = facts(
        problem({"rubrics": [{"kind": "polite"}] * 2}, "instructions"),
        problem({"rubrics": [{"kind": "polite"}] * 3}, "instructions", long),
        problem({"rubrics": [{"kind": "commas"}] * 3}, "instructions", [*long[1:3], ("user", "d")]),
    )
    assert found.rubrics is not None
    assert found.turns is not None
    assert (found.rubrics.mean, found.rubrics.by_count) == (pytest.approx(8 / 3), {2: 1, 3: 2})
    assert (found.turns.num_problems, found.turns.mean_turns, found.turns.num_with_system) == (2, 3.0, 1)


def test_pairs_are_counted_beside_prompts_without_one_RM_D2() -> None:
    pair = problem({"chosen": "yes", "rejected": "no"}, "chat")
    found = facts(pair, problem({}, "chat"))
    assert (found.num_problems, found.num_pairs) == (2, 1)
    assert [(each.chosen, each.rejected) for each in preference_candidates([pair])] == [("yes", "no")]
