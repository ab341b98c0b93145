"""Predicted bytes against those that torch and the engine really hold, at toy size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Glm4MoeConfig, PretrainedConfig, PreTrainedModel, Qwen3Config

from rufus_core.recipe.footprint.activations import activation_bytes, logit_bytes
from rufus_core.recipe.footprint.memory import engine_weight_bytes, kv_bytes_per_token, training_memory
from rufus_core.rollout.kv_cache import CacheShape
from rufus_core.settings import LayoutSettings, OptimizerSettings, PrecisionSettings
from rufus_core.settings.architecture import read_architecture
from rufus_core.settings.layout import cut
from rufus_core.training.forward import TokenSequence, micro_batches, token_logprobs
from rufus_core.training.optimizer import make_optimizer, optimizer_step

COMMON = {
    "vocab_size": 300, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1}
MINIATURES = {
    "experts": Glm4MoeConfig(
        **COMMON, **EXPERTS, num_hidden_layers=3, first_k_dense_replace=1, use_qk_norm=True, num_nextn_predict_layers=0
    ),
    "wide experts": Glm4MoeConfig(
        **COMMON,
        **EXPERTS | {"num_experts_per_tok": 4, "moe_intermediate_size": 96},
        num_hidden_layers=2,
        first_k_dense_replace=0,
        num_nextn_predict_layers=0,
    ),
    "dense": Qwen3Config(**COMMON, num_hidden_layers=4, tie_word_embeddings=True),
}
PLAIN = LayoutSettings()


def model_of(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()


def kept_bytes(model: PreTrainedModel, tokens: int) -> tuple[int, int]:
    """What autograd keeps of the torch trainer's forward pass: in the layers, and of the vocabulary's width."""
    ids = torch.arange(tokens).remainder(model.config.vocab_size).tolist()
    (batch,) = micro_batches([TokenSequence(0, ids, [0] + [1] * (tokens - 1))], tokens)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        token_logprobs(model, batch, 1.0)
    wide = [tensor for tensor in kept.values() if tensor.shape[-1:] == (model.config.vocab_size,)]
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    of_logits = sum(tensor.untyped_storage().nbytes() for tensor in wide)
    return total - of_logits, of_logits


@pytest.mark.parametrize("name", MINIATURES)
def test_activations_of_the_torch_trainer_are_those_that_autograd_keeps(name: str) -> None:
    config, tokens = MINIATURES[name], 512
    in_layers, of_logits = kept_bytes(model_of(config), tokens)
    arch = read_architecture(config.to_dict())
    assert activation_bytes(arch, PLAIN, "torch", tokens, 4) == pytest.approx(in_layers, rel=0.03)
    # backward also holds what it computes, so that the prediction is a bound here
    assert logit_bytes(arch, PLAIN, tokens) / 2 == pytest.approx(of_logits, rel=0.01)


@pytest.mark.parametrize("name", MINIATURES)
def test_weights_gradients_and_optimizer_are_those_that_torch_allocates(name: str) -> None:
    config = MINIATURES[name]
    model, arch = model_of(config), read_architecture(config.to_dict())
    predicted = training_memory(
        arch, PLAIN, cut(arch, PLAIN, 1, "here"), trainer="torch", precision="fp32", has_reference=False, tokens=64
    )
    optimizer = make_optimizer(model, OptimizerSettings(lr_peak=1e-3))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    optimizer_step(model, optimizer, 1e-3, 1.0)
    moments = sum(t.nbytes for state in optimizer.state.values() for t in state.values() if t.dim())
    assert (predicted.weights, predicted.gradients, predicted.optimizer) == (
        sum(parameter.nbytes for parameter in model.parameters()),
        gradients,
        moments,
    )


def test_keys_and_values_are_those_of_the_embedded_engine_in_half_the_width() -> None:
    arch = read_architecture(MINIATURES["experts"].to_dict())
    shape = CacheShape(layers=arch.num_layers, kv_heads=arch.num_kv_heads, head_dim=arch.head_dim)
    bookkeeping = 8  # of a position: its id
    assert kv_bytes_per_token(arch, 1) * 2 == shape.bytes_per_position - bookkeeping


def test_fp8_rollouts_keep_the_first_layers_in_bf16_SLM_07() -> None:
    arch = read_architecture(MINIATURES["dense"].to_dict())

    def weights(**precision: object) -> float:
        return engine_weight_bytes(arch, PrecisionSettings.model_validate(precision))

    every, three, none = (weights(rollout="fp8", rollout_bf16_first_layers=count) for count in (4, 3, 0))
    assert every == weights(rollout="bf16")
    assert every - three == pytest.approx((every - none) / 4)
    embedding = arch.vocab_size * arch.hidden_size * 2
    assert none == pytest.approx((every - embedding) / 2 + embedding)
