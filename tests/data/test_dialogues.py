"""Scripted dialogues over the constraint library: what holds at the end is what was asked, can be met, and is enough to
tell a right answer from a wrong one."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.constraints.library import KINDS, conflict, holds
from rufus_core.data.generators import dialogues
from rufus_core.data.generators.constraints import QUERIES
from rufus_core.data.holdout import split_of
from rufus_core.data.synthesis.dialogue import Dialogue, DialogueSpec, Tactic, draw_tactics
from rufus_core.data.synthesis.filters import hard_enough, sane, solvable
from rufus_core.data.synthesis.script import write_script
from rufus_core.errors import DataError
from rufus_core.rewards.judges import LexicalJudge
from rufus_core.rewards.rubrics import score_rubrics
from rufus_core.types import Problem

COUNT = 150


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return list(dialogues.problems(7, COUNT, {}))


def answered(problem: Problem, wrong: bool, seed: int = 0) -> str:
    (message,) = dialogues.demonstrate(problem, random.Random(seed), wrong)
    return message.content


def passes(problem: Problem, text: str) -> bool:
    return score_rubrics(problem, text, LexicalJudge()).passed


def test_they_are_conversations_that_end_with_the_user_IF_D4(problems: list[Problem]) -> None:
    for problem in problems:
        roles = [message.role for message in problem.prompt if message.role != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        assert 2 <= roles.count("user") <= 6
        assert all(message.content.strip() for message in problem.prompt)
    shares = sum(problem.prompt[0].role == "system" for problem in problems) / COUNT
    assert 0.15 < shares < 0.5
    assert {split_of(problem.id, 0) for problem in problems} == {"train", "validation", "heldout"}


def test_the_witness_passes_and_a_spoilt_one_fails_IF_D7_IF_R1(problems: list[Problem]) -> None:
    for problem in problems:
        assert passes(problem, answered(problem, wrong=False))
        assert not passes(problem, answered(problem, wrong=True))


def test_they_pass_the_three_filters_IF_D6(problems: list[Problem]) -> None:
    """A teacher that gives the witness, and a policy that misses something each time."""
    made = [as_dialogue(problem) for problem in problems]
    teacher = {each.id: [passes(p, answered(p, wrong=False))] * 4 for each, p in zip(made, problems, strict=True)}
    policy = {
        each.id: [passes(p, answered(p, wrong=True, seed=seed)) for seed in range(8)]
        for each, p in zip(made, problems, strict=True)
    }
    found = sane(made, lambda text: len(text.split()), seed=0)
    found = found.then(lambda kept: solvable(kept, teacher)).then(lambda kept: hard_enough(kept, policy))
    assert found.counts == {"asked": COUNT, "kept": COUNT}


def as_dialogue(problem: Problem) -> Dialogue:
    has_system = problem.prompt[0].role == "system"
    tactics = (Tactic.OPEN, Tactic.LAYER)
    spec = DialogueSpec(id=problem.id, seed=0, query="q", tactics=tactics, has_system=has_system, assistant="script")
    return Dialogue(spec=spec, user="script", messages=problem.prompt, rubrics=tuple(problem.ground_truth["rubrics"]))


@given(seed=st.integers(0, 10**6), num_turns=st.integers(1, 8), has_system=st.booleans())
def test_what_holds_accumulates_without_a_contradiction_IF_D2_IF_D5(
    seed: int, num_turns: int, has_system: bool
) -> None:
    rng = random.Random(seed)
    tactics = (Tactic.OPEN, *(draw_tactics(rng, num_turns - 1, has_system) if num_turns > 1 else ()))
    script = write_script(rng, "Why?", tactics, has_system)
    assert len(script.turns) == num_turns
    before: tuple[Any, ...] = ()
    for tactic, turn in zip(tactics, script.turns, strict=True):
        assert 2 <= len(turn.holds) <= 6
        assert all(holds(constraint, turn.witness) for constraint in turn.holds)
        assert not any(conflict(one, other) for one, other in combinations(turn.holds, 2))
        new = [constraint for constraint in turn.holds if constraint not in before]
        gone = [constraint for constraint in before if constraint not in turn.holds]
        if tactic is Tactic.OPEN:
            assert "Why?" in turn.said
        elif tactic in (Tactic.DISTRACT, Tactic.CHALLENGE):
            assert not new + gone
        else:
            assert len(new) == 1
            assert len(gone) <= (tactic is Tactic.REVISE or len(before) == 6)
        stated = [constraint for constraint in new if not (has_system and constraint is turn.holds[0])]
        assert all(states(turn.said, constraint) for constraint in stated), (turn.said, stated)
        before = turn.holds
    if has_system:
        rule = script.turns[0].holds[0]
        assert script.system is not None
        assert states(script.system, rule)
        assert all(turn.holds[0] == rule for turn in script.turns), "a challenge changes nothing (IF-D5)"


def states(said: str, constraint: dict[str, Any]) -> bool:
    """Whether one of the kind's phrasings, with these arguments, is in what was said."""
    listed = {
        name: ", ".join(f'"{entry}"' for entry in value) if isinstance(value, list) else value
        for name, value in constraint.items()
    }
    return any(phrasing.format(**listed) in said for phrasing in KINDS[constraint["kind"]].phrasings)


def test_the_options_are_kept_to() -> None:
    asked = {"queries": ["Why is grass green?"], "min_turns": 3, "max_turns": 3, "system_share": 1.0}
    for problem in dialogues.problems(0, 20, asked):
        assert [message.role for message in problem.prompt].count("user") == 3
        assert problem.prompt[0].role == "system"
        assert "Why is grass green?" in problem.prompt[1].content
    openings = [problem.prompt[0].content for problem in dialogues.problems(0, 20, {"system_share": 0})]
    assert all(any(query in opening for query in QUERIES) for opening in openings)
    first = list(dialogues.problems(3, 12, {}))
    assert first[:5] == list(dialogues.problems(3, 5, {}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_turns": 1}, "from 1 to 6 turns"),
        ({"max_turns": 99}, "from 2 to 99 turns"),
        ({"max_turns": "many"}, "from 2 to 'many' turns"),
        ({"system_share": 2}, "a share of 2"),
        ({"queries": []}, "queries are texts"),
        ({"turns": 3}, "unknown generator option 'turns'"),
    ],
)
def test_options_that_cant_be_used_are_told(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        list(dialogues.problems(0, 1, options))
