"""The same numbers computed the slow way: one sequence at a time, as Hugging Face would."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel


def logprobs(model: PreTrainedModel, token_ids: Sequence[int], temperature: float = 1.0) -> Tensor:
    """Log-prob of each token but the first, given those before it."""
    logits = model(input_ids=torch.tensor([list(token_ids)])).logits[0, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(token_ids[1:])[:, None])[:, 0]


@contextmanager
def recorded(model: PreTrainedModel) -> Iterator[dict[int, Tensor]]:
    """Within it, the experts [positions, experts per token] that the last pass took in each layer that has some."""
    taken: dict[int, Tensor] = {}
    hooks = []
    for index, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "experts"):

            def record(_: object, arguments: tuple[Tensor, ...], index: int = index) -> None:
                taken[index] = arguments[1].clone()

            hooks.append(layer.mlp.experts.register_forward_pre_hook(record))
    try:
        yield taken
    finally:
        for hook in hooks:
            hook.remove()


def routing(model: PreTrainedModel, token_ids: Sequence[int]) -> NDArray[np.int32]:
    """What an engine reports: [tokens - 1, layers, experts per token], zeros in dense layers."""
    with torch.no_grad(), recorded(model) as taken:
        model(input_ids=torch.tensor([list(token_ids)]))
    some = next(iter(taken.values()))
    layers = [taken.get(index, torch.zeros_like(some)) for index in range(len(model.model.layers))]
    return torch.stack(layers, dim=1)[:-1].numpy().astype(np.int32)


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
