"""GLM-4.5 between Hugging Face and Megatron-core, by mbridge: shape, and weights by name.

mbridge knows the names that layers of TransformerEngine have. Without it Megatron builds its own layers, whose names
differ; `NamedWeights` shows them to mbridge under those that it knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from mbridge.models.glm4moe import GLM4MoEBridge
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from torch import Tensor, nn
from transformers import PretrainedConfig

from rufus_core.settings import LayoutSettings
from rufus_core.training.megatron.layout import has_transformer_engine

_WITHOUT_TRANSFORMER_ENGINE: dict[str, Any] = {
    "use_cpu_initialization": True,
    "masked_softmax_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "persist_layer_norm": False,
    "moe_grouped_gemm": False,
    "moe_shared_expert_overlap": False,
}
_RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
_LOCAL_NORM = re.compile(r"\.input_layernorm\.weight$")
_LOCAL_EXPERT = re.compile(r"\.experts\.local_experts\.(\d+)\.(linear_fc\d)\.weight$")


class GlmBridge(GLM4MoEBridge):  # type: ignore[misc]
    """mbridge's, without what it takes for granted: biases of attention, one shared expert, TransformerEngine."""

    def __init__(self, config: PretrainedConfig, layout: LayoutSettings, dtype: torch.dtype) -> None:
        super().__init__(config, dtype, make_vocab_size_divisible_by=layout.tensor_parallel)
        shared = config.n_shared_experts * config.moe_intermediate_size
        settings = {
            "sequence_parallel": layout.sequence_parallel,
            "add_qkv_bias": config.attention_bias,
            "moe_shared_expert_intermediate_size": shared or None,
            "moe_router_load_balancing_type": "none",  # the recipe's losses have no term for balance
            "moe_router_dtype": "fp32",
            "calculate_per_token_loss": True,  # sums over micro-batches and ranks: our losses hold their denominator
            "attention_softmax_in_fp32": True,
            **_RECOMPUTE[layout.recompute],
        }
        if not has_transformer_engine():
            settings |= _WITHOUT_TRANSFORMER_ENGINE
        self.set_extra_args(**settings)

    def _get_gptmodel_args(self) -> dict[str, Any]:
        rope = self.hf_config.rope_parameters
        return {
            "vocab_size": self.hf_config.vocab_size,
            "max_sequence_length": self.hf_config.max_position_embeddings,
            "position_embedding_type": "rope",
            "rotary_base": rope["rope_theta"],
            "rotary_percent": rope["partial_rotary_factor"],
        }

    def _get_transformer_layer_spec(self, vp_stage: int | None = None) -> Any:
        self.has_vp_stage = True
        return get_gpt_decoder_block_spec(
            self.config,
            use_transformer_engine=has_transformer_engine(),
            normalization=self.config.normalization,
            vp_stage=vp_stage,
        )


class NamedWeights:
    """A model's weights under the names that mbridge knows; what it does to them is done to the model's own."""

    def __init__(self, model: nn.Module) -> None:
        self.decoder = model.decoder
        self._model = model
        self._state = {_known_name(name): value for name, value in model.state_dict().items()}

    def state_dict(self) -> dict[str, Tensor]:
        return self._state

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return ((_known_name(name), weight) for name, weight in self._model.named_parameters())


def _known_name(name: str) -> str:
    name = _LOCAL_NORM.sub(".self_attention.linear_qkv.layer_norm_weight", name)
    return _LOCAL_EXPERT.sub(r".experts.\2.weight\1", name)
