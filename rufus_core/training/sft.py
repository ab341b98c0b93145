"""Supervised fine-tuning: token-level cross-entropy on assistant tokens, from packed rows (SFT-01..07)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from rufus_core.algorithms.schedules import learning_rate
from rufus_core.data.chat import MaskedIds
from rufus_core.data.mixture import EndlessOrder
from rufus_core.errors import DataError
from rufus_core.ports.progress import MetricSink
from rufus_core.rollout.policy import Policy
from rufus_core.settings import SFTStage
from rufus_core.training.forward import TokenSequence, micro_batches, trained_logits
from rufus_core.training.optimizer import make_optimizer, optimizer_step
from rufus_core.training.ranks import ALONE, Ranks
from rufus_core.training.state import UNKEPT, Position, Unkept

_MICRO_BATCH_TOKENS = 2048


def train_sft(
    policy: Policy,
    examples: Sequence[MaskedIds],
    stage: SFTStage,
    seed: int,
    sink: MetricSink,
    save: Callable[[int], None],
    state: Unkept = UNKEPT,
    ranks: Ranks = ALONE,
) -> None:
    """Train in place, from where `state` is. `save(step)` is called at every checkpoint interval and at the end.

    The loss of a step is the mean over all its assistant tokens, however the batch is cut (SFT-06). A batch without
    such a token takes no optimizer step and is counted as `skipped_updates`.

    Raises:
        DataError: there is no example.
        Preempted: `state` was told to stop.
        RankLost: one of several `ranks` died.
    """
    if not examples:
        raise DataError("there is no example to train on")
    steps, size = stage.run.steps, stage.batch.global_batch_sequences
    assert steps is not None
    model = policy.model.train()
    optimizer = make_optimizer(model, stage.optimizer)
    begun = state.begin(model, optimizer)
    order = EndlessOrder(len(examples), seed, begun.taken)
    for step in range(begun.step + 1, steps + 1):
        batch = [TokenSequence(i, examples[i].token_ids, examples[i].loss_mask) for i in order.take(size)]
        num_tokens = sum(sum(s.mask[1:]) for s in batch)
        loss_sum = norm = 0.0
        for micro in micro_batches(ranks.share(batch), _MICRO_BATCH_TOKENS):
            logits = trained_logits(model, micro)
            loss = torch.nn.functional.cross_entropy(logits, micro.target_N, reduction="sum") / max(1, num_tokens)
            loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.item()
        loss_sum = sum(ranks.concat([loss_sum]))
        rate = learning_rate(step, steps, stage.optimizer)
        if num_tokens:
            ranks.sum_gradients(model)
            norm = optimizer_step(model, optimizer, rate, stage.optimizer.grad_clip)
        epoch = math.ceil(order.taken / len(examples))
        metrics = {"loss": loss_sum, "grad_norm": norm, "lr": rate, "tokens": float(num_tokens), "epoch": float(epoch)}
        sink.log(step, metrics | {"skipped_updates": float(num_tokens == 0)})
        candidate = stage.run.saves(step)
        if candidate:
            save(step)
        state.end_step(Position(step, order.taken, step), candidate)
    model.eval()
