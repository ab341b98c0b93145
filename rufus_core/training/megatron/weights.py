"""Whole weights of a policy that is cut over ranks, under the names of Hugging Face's files, and as its model."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from rufus_core.training.megatron.bridge import GlmBridge, NamedWeights

_EXPERT = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<number>\d+)\.(?P<which>gate|up|down)_proj\.weight")


def whole_weights(bridge: GlmBridge, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor one by one, the same on every rank; each must take them all."""
    with torch.no_grad():
        for name, weight in bridge.export_weights([NamedWeights(model)]):
            yield name, weight.detach()


def empty_model(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model of this shape on the host, whose weights mean nothing yet."""
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval()


def fill(model: PreTrainedModel, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Copy the weights in. Transformers keeps the experts of a layer in one tensor, and writes them as many."""
    targets = model.state_dict()
    with torch.no_grad():
        for name, weight in weights:
            _place(targets, name).copy_(weight)


def _place(targets: dict[str, Tensor], name: str) -> Tensor:
    expert = _EXPERT.fullmatch(name)
    if expert is None:
        return targets[name]
    of_layer, number = expert["experts"], int(expert["number"])
    if expert["which"] == "down":
        return targets[f"{of_layer}.down_proj"][number]
    gate, up = targets[f"{of_layer}.gate_up_proj"][number].chunk(2)
    return gate if expert["which"] == "gate" else up
