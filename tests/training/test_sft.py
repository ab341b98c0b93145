"""Supervised fine-tuning (SFT-01..07)."""

from __future__ import annotations

import pytest
import torch

from rufus_core.data.chat import MaskedIds
from rufus_core.errors import DataError
from rufus_core.rollout.policy import Policy
from rufus_core.settings import SFTStage
from rufus_core.training.sft import train_sft
from rufus_core.training.torch_trainer import TorchTrainer
from tests.training import reference, toy


def _train(
    policy: Policy, rows: list[MaskedIds], stage: SFTStage, seed: int = 0, micro_batch_tokens: int = 2048
) -> tuple[toy.Sink, list[int]]:
    sink, saved = toy.Sink(), []
    trainer = TorchTrainer(policy, stage.optimizer, micro_batch_tokens=micro_batch_tokens)
    train_sft(trainer, rows, stage, seed, sink, saved.append)
    return sink, saved


def _uneven(policy: Policy) -> list[MaskedIds]:
    """Answers of one to several tokens, so that a mean over sequences is not one over tokens."""
    ids = policy.chat.tokenizer("red blue green black red blue green black")["input_ids"]
    return [MaskedIds([5, 6, *ids[: 3 + 2 * i]], [0, 0, *([1] * (3 + 2 * i))]) for i in range(6)]


def _token_mean(model, rows: list[MaskedIds]) -> torch.Tensor:  # type: ignore[no-untyped-def]
    picked = [
        reference.logprobs(model, row.token_ids)[torch.tensor(row.loss_mask[1:]) == 1] for row in rows if row.loss_mask
    ]
    return -torch.cat(picked).mean()


def test_the_loss_is_the_mean_over_assistant_tokens_SFT_06() -> None:
    policy = toy.toy_policy()
    rows = _uneven(policy)
    before = toy.copy_of(policy).model
    stage = toy.sft_stage(optimizer=toy.PLAIN_STEP, batch={"global_batch_sequences": 6}, run={"steps": 1})
    sink, _ = _train(policy, rows, stage)
    assert sink.rows[0]["loss"] == pytest.approx(_token_mean(before, rows).item(), abs=1e-5)
    assert sink.rows[0]["tokens"] == sum(sum(row.loss_mask) for row in rows)
    weights = reference.after_plain_step(before, lambda model: _token_mean(model, rows))
    assert reference.largest_difference(weights, policy.model) < 1e-5
    assert reference.largest_difference(dict(before.named_parameters()), policy.model) > 1e-3


def test_the_loss_does_not_depend_on_how_a_batch_is_cut() -> None:
    stage = toy.sft_stage(optimizer=toy.PLAIN_STEP, batch={"global_batch_sequences": 60}, run={"steps": 1})
    trained, losses = [], []
    for most_tokens in (8192, 1):
        policy = toy.toy_policy()
        rows = _uneven(policy) * 10
        assert sum(len(row.token_ids) for row in rows) > 512  # more than one row
        sink, _ = _train(policy, rows, stage, micro_batch_tokens=most_tokens)
        trained.append(policy.model)
        losses.append(sink.rows[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert reference.largest_difference(dict(trained[0].named_parameters()), trained[1]) < 1e-5


def test_it_learns_a_toy_set() -> None:
    policy = toy.toy_policy()
    rows = toy.examples(policy, 32, colours=("red",))
    sink, _ = _train(policy, rows, toy.sft_stage(run={"steps": 25}))
    assert sink.rows[-1]["loss"] < 0.3 < 3 < sink.rows[0]["loss"]


def test_two_runs_are_equal_bit_for_bit() -> None:
    runs = []
    for _ in range(2):
        policy = toy.toy_policy()
        sink, _ = _train(policy, toy.examples(policy, 20), toy.sft_stage(run={"steps": 4}), seed=3)
        runs.append((sink.rows, policy.model))
    assert runs[0][0] == runs[1][0]
    assert reference.largest_difference(dict(runs[0][1].named_parameters()), runs[1][1]) == 0.0


def test_checkpoints_at_the_interval_and_at_the_end() -> None:
    policy = toy.toy_policy()
    rows = toy.examples(policy, 8)
    assert _train(policy, rows, toy.sft_stage(run={"steps": 5, "checkpoint_interval_steps": 2}))[1] == [2, 4, 5]
    assert _train(policy, rows, toy.sft_stage(run={"steps": 4, "checkpoint_interval_steps": 2}))[1] == [2, 4]
    assert _train(policy, rows, toy.sft_stage(run={"steps": 2}))[1] == [2]


def test_a_batch_larger_than_the_set_wraps_epochs() -> None:
    policy = toy.toy_policy()
    rows = toy.examples(policy, 3)
    sink, _ = _train(policy, rows, toy.sft_stage(batch={"global_batch_sequences": 8}, run={"steps": 3}))
    assert [row["epoch"] for row in sink.rows] == [3, 6, 8]
    each = sum(rows[0].loss_mask)
    assert [row["tokens"] for row in sink.rows] == [8 * each] * 3


def test_a_batch_without_assistant_tokens_takes_no_step_and_is_counted() -> None:
    policy = toy.toy_policy()
    before = toy.copy_of(policy).model
    rows = [MaskedIds([1, 2, 3], [0, 0, 0])] * 4
    sink, _ = _train(policy, rows, toy.sft_stage(run={"steps": 1}))
    assert sink.rows[0]["loss"] == 0.0
    assert sink.rows[0]["skipped_updates"] == 1
    assert reference.largest_difference(dict(before.named_parameters()), policy.model) == 0.0


def test_without_examples_it_refuses() -> None:
    with pytest.raises(DataError, match="no example"):
        _train(toy.toy_policy(), [], toy.sft_stage())
