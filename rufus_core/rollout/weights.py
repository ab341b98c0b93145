"""A copy of a Hugging Face model's weights in the layout that decoding wants: one product where the model has several.

Shapes: D hidden size, H query heads, G key-value heads, d size of a head, F width of an MLP, E experts, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

# Families whose layers are exactly those of `Layer` below.
_DENSE = ("llama", "qwen2", "qwen3")
_MIXTURE = ("glm4_moe",)


@dataclass(slots=True)
class Mlp:
    """silu(gate) * up, then down."""

    gate_up: Tensor  # [2F, D]
    down: Tensor  # [D, F]


@dataclass(slots=True)
class Experts:
    router: Tensor  # [E, D], fp32
    bias: Tensor  # [E], of the choice alone
    gate_up: Tensor  # [E, 2F, D]
    down: Tensor  # [E, D, F]
    shared: Mlp


@dataclass(slots=True)
class Layer:
    attention_norm: Tensor  # [D]
    qkv: Tensor  # [(H + 2G) d, D]
    qkv_bias: Tensor | None
    qk_norm: Tensor | None  # [H + G, d]
    output: Tensor  # [D, H d]
    mlp_norm: Tensor  # [D]
    mlp: Mlp | Experts


@dataclass(slots=True)
class Weights:
    embedding: Tensor  # [V, D]
    layers: list[Layer]
    norm: Tensor  # [D]
    head: Tensor  # [V, D]

    @classmethod
    def copy_of(cls, model: PreTrainedModel) -> Self:
        """The weights as they are now; a later change of the model's doesn't reach them."""
        with torch.no_grad():
            base = model.base_model
            return cls(
                base.embed_tokens.weight.clone(),
                [_layer(layer) for layer in base.layers],
                base.norm.weight.clone(),
                model.get_output_embeddings().weight.clone(),
            )


def has_known_layers(model: PreTrainedModel) -> bool:
    """Whether `Weights` and the decoder describe all that this model computes."""
    config = model.config
    if config.model_type not in (*_DENSE, *_MIXTURE) or model.get_output_embeddings() is None:
        return False
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    biased = any(
        module.bias is not None
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.endswith(("q_proj", "k_proj", "v_proj"))
    )
    return (
        rope in ("default", "linear", "llama3")
        and kinds == {"full_attention"}
        and getattr(config, "hidden_act", "") == "silu"
        and model.dtype == torch.float32
        and not biased
    )


def _layer(layer: Any) -> Layer:
    attention = layer.self_attn
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    biases = [p.bias for p in projections]
    norms = None
    if getattr(attention, "q_norm", None) is not None:
        head_dim = attention.head_dim
        heads, kv_heads = (p.out_features // head_dim for p in projections[:2])
        norms = torch.cat([attention.q_norm.weight.expand(heads, -1), attention.k_norm.weight.expand(kv_heads, -1)])
    return Layer(
        layer.input_layernorm.weight.clone(),
        torch.cat([p.weight for p in projections]),
        torch.cat(biases) if biases[0] is not None else None,
        norms,
        attention.o_proj.weight.clone(),
        layer.post_attention_layernorm.weight.clone(),
        _experts(layer.mlp) if hasattr(layer.mlp, "experts") else _mlp(layer.mlp),
    )


def _mlp(mlp: Any) -> Mlp:
    return Mlp(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]), mlp.down_proj.weight.clone())


def _experts(moe: Any) -> Experts:
    return Experts(
        moe.gate.weight.float().clone(),
        moe.gate.e_score_correction_bias.clone(),
        moe.experts.gate_up_proj.clone(),
        moe.experts.down_proj.clone(),
        _mlp(moe.shared_experts),
    )
