"""What is settled of a dialogue before a model is asked, and how the user model's replies are read."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rufus_core.data.synthesis.dialogue import DialogueSpec, SynthesisSettings, Tactic, specifications
from rufus_core.data.synthesis.requests import read_plan, read_rubrics

ASSISTANTS = ("one", "two", "three")
KINDS = {"num_words": "`count`", "judge": "`question`"}


def specs(count: int = 60, seed: int = 0, **settings: Any) -> tuple[DialogueSpec, ...]:
    return specifications(SynthesisSettings(count=count, **settings), seed, "user", ASSISTANTS)


@given(st.integers(1, 40), st.integers(0, 99), st.floats(0, 1))
def test_every_specification_keeps_to_the_settings_IF_D4_D5(count: int, seed: int, share: float) -> None:
    made = specs(count, seed, system_share=share, min_turns=2, max_turns=5)
    assert len({spec.id for spec in made}) == count
    for spec in made:
        assert 2 <= len(spec.tactics) <= 5
        assert spec.tactics[0] is Tactic.OPEN
        assert Tactic.OPEN not in spec.tactics[1:]
        assert (Tactic.CHALLENGE in spec.tactics) == spec.has_system


def test_assistants_rotate_over_the_data_points_IF_D4() -> None:
    made = specs(60)
    assert set(Counter(spec.assistant for spec in made).values()) == {20}
    assert all(a.assistant != b.assistant for a, b in itertools.pairwise(made))
    assert {specs(1, seed)[0].assistant for seed in range(9)} == set(ASSISTANTS)


def test_the_same_settings_give_the_same_and_more_only_adds() -> None:
    assert specs(60) == specs(60)
    assert specs(60)[:10] == specs(10)
    assert not {spec.id for spec in specs(60)} & {spec.id for spec in specs(60, seed=1)}
    assert not {spec.id for spec in specs(60)} & {spec.id for spec in specs(60, system_share=0.5)}
    assert {spec.has_system for spec in specs(60)} == {True, False}


def test_settings_that_allow_no_dialogue_are_refused() -> None:
    with pytest.raises(ValidationError, match="below min_turns"):
        SynthesisSettings(count=1, min_turns=5, max_turns=4)


def rubrics(*listed: dict[str, Any], most: int = 3) -> Any:
    return read_rubrics(json.dumps({"rubrics": listed}), KINDS, most)


def count_of(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "num_words", "count": number, "necessary": True, **more}


def test_rubrics_are_necessary_conditions_only_IF_D7() -> None:
    judged = {"kind": "judge", "question": "Is it kind?", "necessary": True}
    assert rubrics(count_of(3), count_of(3), judged) == (
        {"kind": "num_words", "count": 3},
        {"kind": "judge", "question": "Is it kind?"},
    )
    for refused in (
        [count_of(3), {"kind": "num_words", "count": 4, "necessary": False}],
        [{"kind": "num_words", "count": 4}],
        [count_of(3, optional=True)],
        [{"kind": "beauty", "necessary": True}],
        [{"kind": "judge", "question": " ", "necessary": True}],
        [count_of(number) for number in range(4)],
        [],
    ):
        with pytest.raises(ValueError, match=r"rubric|kind|necessary|question"):
            rubrics(*refused)


@pytest.mark.parametrize("reply", ["", "no", "[]", '{"rubrics": 1}', '{"rubrics": [1]}', "{}", '{"rubrics": []} {}'])
def test_what_holds_no_rubrics_is_refused(reply: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|rubrics"):
        read_rubrics(reply, KINDS, 3)


def test_a_plan_fits_its_specification() -> None:
    spec = next(spec for spec in specs() if spec.has_system)
    steps = ["do it"] * len(spec.tactics)
    plan = read_plan(json.dumps({"system": "Be brief.", "steps": steps, "decline": True, "mood": "bad"}), spec)
    assert (plan.system, plan.decline, len(plan.steps)) == ("Be brief.", True, len(spec.tactics))
    for wrong in ({"system": None, "steps": steps}, {"system": "Be.", "steps": steps[1:]}, {"system": "Be."}):
        with pytest.raises(ValueError, match=r"missing|steps|plan"):
            read_plan(json.dumps(wrong), spec)
    without = next(spec for spec in specs() if not spec.has_system)
    with pytest.raises(ValueError, match="none asked for"):
        read_plan(json.dumps({"system": "Be.", "steps": ["x"] * len(without.tactics)}), without)
