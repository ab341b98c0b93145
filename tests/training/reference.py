"""The same numbers computed the slow way: one sequence at a time, as Hugging Face would."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel


def logprobs(model: PreTrainedModel, token_ids: Sequence[int], temperature: float = 1.0) -> Tensor:
    """Log-prob of each token but the first, given those before it."""
    logits = model(input_ids=torch.tensor([list(token_ids)])).logits[0, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(token_ids[1:])[:, None])[:, 0]


def after_plain_step(model: PreTrainedModel, loss_of_copy) -> dict[str, Tensor]:  # type: ignore[no-untyped-def]
    """Weights after one step of `toy.PLAIN_STEP` down the loss that `loss_of_copy` computes with a copy."""
    twin = copy.deepcopy(model)
    loss_of_copy(twin).backward()
    return {
        name: w.detach() - w.grad / (w.grad.abs() + 1) if w.grad is not None else w.detach()
        for name, w in twin.named_parameters()
    }


def largest_difference(weights: dict[str, Tensor], model: PreTrainedModel) -> float:
    return max((weights[name] - w.detach()).abs().max().item() for name, w in model.named_parameters())
