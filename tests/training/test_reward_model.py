"""The Bradley-Terry reward model of RLHF (section 10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rufus_core.data.preferences import PreferencePair
from rufus_core.errors import DataError
from rufus_core.settings import RewardModelSettings
from rufus_core.training.reward_model import RewardModel, train_reward_model
from tests.training import toy

SETTINGS = RewardModelSettings.model_validate(
    {"num_pairs": 64, "steps": 30, "batch_pairs": 8, "optimizer": {"lr_peak": 1e-2}}
)


def _pairs(count: int) -> list[PreferencePair]:
    """A reply that names red is preferred, whatever comes before it."""
    return [
        PreferencePair(
            problem_id=str(i),
            prompt=toy.PROBLEMS[i % 4].prompt,
            chosen=f"{toy.COLOURS[1 + i % 3]} red",
            rejected=f"{toy.COLOURS[1 + i % 3]} {toy.COLOURS[1 + i // 3 % 3]}",
        )
        for i in range(count)
    ]


def _trained() -> tuple[RewardModel, toy.Sink, dict[str, float]]:
    model, sink = RewardModel(toy.toy_policy(), seed=1), toy.Sink()
    return model, sink, train_reward_model(model, _pairs(48), _pairs(12), SETTINGS, 0, sink)


def test_it_learns_separable_pairs() -> None:
    model, sink, metrics = _trained()
    assert len(sink.rows) == 30
    assert sink.rows[-1]["loss"] < sink.rows[0]["loss"]
    assert metrics["heldout_accuracy"] == 1.0
    assert metrics["heldout_margin"] > 1
    assert metrics["heldout_pairs"] == 12
    prompt = toy.PROBLEMS[0].prompt
    assert model.score(prompt, "blue red") > model.score(prompt, "blue green")


def test_a_loaded_model_scores_the_same(tmp_path: Path) -> None:
    model, _, _ = _trained()
    model.save(tmp_path)
    loaded = RewardModel.load(tmp_path)
    for pair in _pairs(6):
        assert loaded.score(pair.prompt, pair.chosen) == model.score(pair.prompt, pair.chosen)


def test_a_score_does_not_depend_on_the_rest_of_the_batch() -> None:
    model = RewardModel(toy.toy_policy(), seed=1).eval()
    short = model.encode(toy.PROBLEMS[0].prompt, "red")
    long = model.encode(toy.PROBLEMS[1].prompt, "red blue green black")
    together = model([short, long]).tolist()
    assert together == pytest.approx([model([short]).item(), model([long]).item()], abs=1e-6)


def test_two_trainings_are_equal_bit_for_bit() -> None:
    (first, rows, _), (second, again, _) = _trained(), _trained()
    assert rows.rows == again.rows
    assert first.score(toy.PROBLEMS[0].prompt, "red") == second.score(toy.PROBLEMS[0].prompt, "red")


def test_too_few_pairs_are_refused() -> None:
    model = RewardModel(toy.toy_policy())
    for train, heldout in ((_pairs(4), []), ([], _pairs(4))):
        with pytest.raises(DataError, match="too few"):
            train_reward_model(model, train, heldout, SETTINGS, 0, toy.Sink())
