"""The shape of a policy that is planned with, also where its weights are not on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from rufus_core.types import Frozen, Json

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]

ATTENTION_BIAS_BY_DEFAULT = ("qwen2", "qwen2_moe")


class ArchitectureSettings(Frozen):
    """A decoder with grouped-query attention and gated MLPs, some of which may be mixtures of experts.

    It decides no result: the weights do. `rufus_core.recipe.footprint` counts with it;
    `rufus_core.settings.layout` says how it can be cut.
    """

    model_type: str | None = None  # its family, as transformers calls it; None: not said
    num_layers: Positive
    hidden_size: Positive
    num_heads: Positive
    num_kv_heads: Positive
    head_dim: Positive
    vocab_size: Positive
    intermediate_size: Positive  # of a dense layer's MLP
    first_dense_layers: NonNegative = 0  # layers before the first with experts; a model without experts has none other
    num_experts: NonNegative = 0
    experts_per_token: NonNegative = 0
    expert_intermediate_size: NonNegative = 0
    num_shared_experts: NonNegative = 0
    attention_bias: bool = False  # of the projections to queries, keys and values
    qk_norm: bool = False
    tied_embeddings: bool = False
    context_tokens: Positive

    @model_validator(mode="after")
    def _experts_are_whole(self) -> Self:
        if self.num_experts and not (0 < self.experts_per_token <= self.num_experts and self.expert_intermediate_size):
            raise ValueError(f"{self.num_experts} experts need experts_per_token and expert_intermediate_size")
        if self.first_dense_layers > self.num_layers:
            raise ValueError(f"{self.first_dense_layers} dense layers of {self.num_layers} in all")
        return self

    @property
    def num_expert_layers(self) -> int:
        return self.num_layers - self.first_dense_layers if self.num_experts else 0


def read_architecture(config: Mapping[str, Json]) -> ArchitectureSettings:
    """From a `config.json` of transformers: Llama, Qwen2, Qwen3 and their mixtures, GLM-4.5.

    Raises:
        KeyError: it lacks a number that all of these have.
    """
    heads, kind = config["num_attention_heads"], config.get("model_type", "")
    experts = config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts") or 0
    return ArchitectureSettings(
        model_type=kind or None,
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        intermediate_size=config["intermediate_size"],
        first_dense_layers=config.get("first_k_dense_replace", 0) if experts else 0,
        num_experts=experts,
        experts_per_token=config.get("num_experts_per_tok", 0) if experts else 0,
        expert_intermediate_size=config.get("moe_intermediate_size", 0) if experts else 0,
        num_shared_experts=config.get("n_shared_experts", 0) if experts else 0,
        attention_bias=config.get("attention_bias", kind in ATTENTION_BIAS_BY_DEFAULT),
        qk_norm=kind.startswith("qwen3") or bool(config.get("use_qk_norm")),
        tied_embeddings=config.get("tie_word_embeddings", False),
        context_tokens=config["max_position_embeddings"],
    )
