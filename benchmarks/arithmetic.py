"""What a pass through a model costs in arithmetic, and how much of it this machine does in a second.

    FLOPs = passes * (2 * matrix weights of a token * positions + 2 * vocabulary * hidden * scored tokens
                      + 4 * heads * head size * layers * sum over sequences of T (T + 1) / 2)

with 1 pass to generate or score and 3 to train (one forward, two for gradients). Of the experts a token has those it is
sent to. Norms, activations, softmax and the optimizer count as nothing: what is left is a bound, not an estimate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

ROWS = 2048  # about a micro-batch


def flops(model: PreTrainedModel, lengths: Sequence[int], scored: int, passes: int) -> float:
    config: Any = model.config
    weights = sum(rows * columns * times for rows, columns, times in _matrices(model))
    pairs = sum(length * (length + 1) / 2 for length in lengths)
    attention = 4 * config.num_attention_heads * config.head_dim * config.num_hidden_layers * pairs
    return passes * (2 * weights * sum(lengths) + 2 * config.vocab_size * config.hidden_size * scored + attention)


def flops_per_second(model: PreTrainedModel) -> float:
    """Measured on products of `ROWS` rows with matrices of this model's shapes, weighted as a token meets them."""
    done = seconds = 0.0
    for rows, columns in sorted({(r, c) for r, c, _ in _matrices(model)}):
        times = sum(t for r, c, t in _matrices(model) if (r, c) == (rows, columns))
        inputs, weight = torch.randn(ROWS, columns), torch.randn(rows, columns)
        done += times * 2 * ROWS * rows * columns
        seconds += times * median(_seconds(inputs, weight) for _ in range(20))
    return done / seconds


def _seconds(inputs: torch.Tensor, weight: torch.Tensor) -> float:
    started = time.perf_counter()
    torch.nn.functional.linear(inputs, weight)
    return time.perf_counter() - started


def _matrices(model: PreTrainedModel) -> list[tuple[int, int, int]]:
    """(rows, columns, how often a token meets it) of each matrix in the layers."""
    found = []
    for name, weight in model.base_model.layers.named_parameters():
        if weight.ndim == 2:
            found.append((*weight.shape, 1))
        elif weight.ndim == 3 and ".experts." in name:
            found.append((*weight.shape[1:], model.config.num_experts_per_tok))
    return found
