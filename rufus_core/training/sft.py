"""Supervised fine-tuning: token-level cross-entropy on assistant tokens, from packed rows (SFT-01..07)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import nll_loss

from rufus_core.algorithms.losses import LossOutput
from rufus_core.algorithms.schedules import learning_rate
from rufus_core.data.chat import MaskedIds
from rufus_core.data.mixture import EndlessOrder
from rufus_core.errors import DataError
from rufus_core.ports.progress import MetricSink
from rufus_core.settings import SFTStage
from rufus_core.training.forward import TokenSequence
from rufus_core.training.state import UNKEPT, Position, Unkept
from rufus_core.training.trainer import Loss, Scored, Trainer


def train_sft(
    trainer: Trainer,
    examples: Sequence[MaskedIds],
    stage: SFTStage,
    seed: int,
    sink: MetricSink,
    save: Callable[[int], None],
    state: Unkept = UNKEPT,
) -> None:
    """Train from where `state` is. `save(step)` is called at every checkpoint interval and at the end.

    The loss of a step is the mean over all its assistant tokens, however the batch is cut (SFT-06). A batch without
    such a token takes no optimizer step and is counted as `skipped_updates`.

    Raises:
        DataError: there is no example.
        Preempted: `state` was told to stop.
        RankLost: one of several ranks died.
    """
    if not examples:
        raise DataError("there is no example to train on")
    steps, size = stage.run.steps, stage.batch.global_batch_sequences
    assert steps is not None
    begun = state.begin(trainer)
    order = EndlessOrder(len(examples), seed, begun.taken)
    for step in range(begun.step + 1, steps + 1):
        batch = [TokenSequence(i, examples[i].token_ids, examples[i].loss_mask) for i in order.take(size)]
        num_tokens = sum(sum(s.mask[1:]) for s in batch)
        outputs = trainer.accumulate(batch, cross_entropy(max(1, num_tokens)))
        loss = sum(output.loss.item() for output in outputs)
        rate = learning_rate(step, steps, stage.optimizer)
        norm = trainer.step(rate, stage.optimizer.grad_clip) if num_tokens else 0.0
        epoch = math.ceil(order.taken / len(examples))
        metrics = {"loss": loss, "grad_norm": norm, "lr": rate, "tokens": float(num_tokens), "epoch": float(epoch)}
        sink.log(step, metrics | {"skipped_updates": float(num_tokens == 0)})
        candidate = stage.run.saves(step)
        if candidate:
            save(step)
        state.end_step(Position(step, order.taken, step), candidate)
    trainer.end()


def cross_entropy(denominator: int) -> Loss:
    """The sum over a micro-batch's trained tokens, as a share of the mean over `denominator` tokens."""

    def loss(scored: Scored) -> LossOutput:
        first_N = torch.zeros_like(scored.batch.target_N)
        total = nll_loss(scored.logprobs_N[:, None], first_N, reduction="sum")  # sums more exactly than `Tensor.sum`
        return LossOutput(total / denominator, len(first_N), {})

    return loss
