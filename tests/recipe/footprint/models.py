"""Architectures of real models, and those models on the meta device or at toy size."""

from __future__ import annotations

import torch
from transformers import (
    AutoModelForCausalLM,
    Glm4MoeConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

GLM_4_5_AIR = Glm4MoeConfig(attention_bias=True, head_dim=128, num_nextn_predict_layers=0)
QWEN3_0_6B = Qwen3Config(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
    tie_word_embeddings=True,
)
QWEN3_1_7B_BASE = Qwen3Config(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=6144,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=32768,
    tie_word_embeddings=True,
)


def on_meta(config: PretrainedConfig) -> PreTrainedModel:
    """The model without its numbers: it takes no memory, whatever its size."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)
