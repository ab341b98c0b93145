"""How many parameters an architecture has, which are active for a token, and which a rank holds."""

from __future__ import annotations

from rufus_core.settings import ArchitectureSettings, LayoutSettings
from rufus_core.types import Frozen


class ParameterCounts(Frozen):
    """Parameters by where they are cut: `experts` over expert ranks, `layers` and the rest over tensor ranks."""

    embedding: int
    output: int  # 0 where it is the embedding
    layers: int  # attention, dense and shared MLPs, routers, norms of all layers
    experts: int  # routed ones of all layers
    active: int  # that a token is multiplied with, without the embedding

    @property
    def total(self) -> int:
        return self.embedding + self.output + self.layers + self.experts

    @property
    def in_layers(self) -> int:
        """Without embedding and output, as GLM-4.5's report counts."""
        return self.layers + self.experts


def count_parameters(arch: ArchitectureSettings) -> ParameterCounts:
    """Exact, as the model classes of transformers have them (without layers for predicting several tokens)."""
    embedding = arch.vocab_size * arch.hidden_size
    layers = sum(_layer(arch, _is_expert_layer(arch, layer)) for layer in range(arch.num_layers)) + arch.hidden_size
    return ParameterCounts(
        embedding=embedding,
        output=0 if arch.tied_embeddings else embedding,
        layers=layers,
        experts=arch.num_expert_layers * arch.num_experts * _expert(arch),
        active=layers + arch.num_expert_layers * arch.experts_per_token * _expert(arch) + embedding,
    )


def _is_expert_layer(arch: ArchitectureSettings, layer: int) -> bool:
    return bool(arch.num_experts) and layer >= arch.first_dense_layers


def _expert(arch: ArchitectureSettings) -> int:
    return 3 * arch.hidden_size * arch.expert_intermediate_size


def _layer(arch: ArchitectureSettings, has_experts: bool) -> int:
    """Without its routed experts: attention, two norms, and the MLP or the router and the shared experts."""
    if has_experts:
        rest = arch.num_shared_experts * _expert(arch) + arch.hidden_size * arch.num_experts
    else:
        rest = 3 * arch.hidden_size * arch.intermediate_size
    return _attention(arch) + 2 * arch.hidden_size + rest


def _attention(arch: ArchitectureSettings) -> int:
    queries, keys = arch.num_heads * arch.head_dim, 2 * arch.num_kv_heads * arch.head_dim
    bias = queries + keys if arch.attention_bias else 0
    norms = 2 * arch.head_dim if arch.qk_norm else 0
    return arch.hidden_size * (2 * queries + keys) + bias + norms


class RankParameters(Frozen):
    """Of one rank: what all of its data-parallel group hold, and its experts, which fewer ranks hold with it."""

    shared: float
    experts: float

    @property
    def total(self) -> float:
        return self.shared + self.experts


def rank_parameters(arch: ArchitectureSettings, layout: LayoutSettings) -> list[RankParameters]:
    """Of a rank of each pipeline stage, in order.

    Layers are cut evenly by pipeline, then by tensor ranks, and experts by expert ranks, each whole on its rank.
    The first stage has the embedding, the last one the output, which is a second embedding where both are tied.
    """
    pipeline = layout.pipeline_parallel
    embedding = arch.vocab_size * arch.hidden_size
    per_stage = arch.num_layers // pipeline
    stages = []
    for index in range(pipeline):
        first = index * per_stage
        kinds = [_is_expert_layer(arch, layer) for layer in range(first, first + per_stage)]
        shared = sum(_layer(arch, kind) for kind in kinds)
        if index == 0:
            shared += embedding
        if index == pipeline - 1:
            shared += arch.hidden_size  # the last norm
            shared += embedding if pipeline > 1 or not arch.tied_embeddings else 0
        experts = sum(kinds) * arch.num_experts * _expert(arch)
        stages.append(RankParameters(shared=shared / layout.tensor_parallel, experts=experts / layout.expert_parallel))
    return stages
