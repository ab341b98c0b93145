"""The shape of a policy that is planned with, also where its weights are not on this machine."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rufus_core.types import Frozen

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]


class ArchitectureSettings(Frozen):
    """A decoder with grouped-query attention and gated MLPs, some of which may be mixtures of experts.

    It decides no result: the weights do. `rufus_core.recipe.footprint` counts with it.
    """

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
