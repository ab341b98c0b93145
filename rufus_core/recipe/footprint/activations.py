"""What a forward pass keeps for the backward pass, by the size of its tensors.

After Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 4, for layers
with RMSNorm, grouped-query attention that keeps no scores, and gated MLPs or experts. Sizes are elements of a token.
"""

from __future__ import annotations

from rufus_core.recipe.footprint.gpus import ASSUMPTIONS
from rufus_core.settings import ArchitectureSettings, LayoutSettings
from rufus_core.types import Frozen


class Kernels(Frozen):
    """How many tensors of a kind are kept: fused kernels keep fewer."""

    norm: int  # of a layer's norm: its input, what is normalised, its output
    qk_norm: int
    attention: int  # its output
    gated: int  # of an MLP: gate, its activation, up, their product


HUGGING_FACE = Kernels(norm=3, qk_norm=2, attention=2, gated=4)
TRANSFORMER_ENGINE = Kernels(norm=2, qk_norm=1, attention=1, gated=3)
KERNELS = {"torch": HUGGING_FACE, "megatron": TRANSFORMER_ENGINE}
LOGIT_COPIES = 4  # in fp32: logits, log-softmax, probabilities, and a gradient


def layer_elements(
    arch: ArchitectureSettings, layout: LayoutSettings, kernels: Kernels, *, has_experts: bool, imbalance: float = 1.0
) -> float:
    """Kept of one token in one layer, on one tensor rank. `imbalance` scales what experts keep.

    Without sequence parallelism each tensor rank keeps all of a layer's norms. Routed tokens are cut over tensor ranks
    by sequence parallelism, and then over expert ranks, which hold the tokens of as many ranks as they share.
    """
    tensor = layout.tensor_parallel
    sequence = tensor if layout.sequence_parallel else 1
    queries, keys = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    norms = 2 * kernels.norm * arch.hidden_size
    attention = (1 + kernels.attention) * queries + 2 * keys + arch.num_heads
    if arch.qk_norm:
        attention += kernels.qk_norm * (queries + keys)
    if not has_experts:
        return norms / sequence + (attention + kernels.gated * arch.intermediate_size) / tensor
    width = arch.expert_intermediate_size
    routed = arch.experts_per_token * (2 * arch.hidden_size + kernels.gated * width)
    shared = arch.num_shared_experts * kernels.gated * width
    return (norms + arch.num_experts + imbalance * routed) / sequence + (attention + shared) / tensor


def activation_bytes(
    arch: ArchitectureSettings, layout: LayoutSettings, trainer: str, tokens: float, element_bytes: int
) -> float:
    """Of the first pipeline stage, which has as many micro-batches under way as there are stages.

    `tokens` of a micro-batch are cut over context ranks. `full` keeps each layer's input, and one layer whole while it
    is computed again; `selective` keeps all but the insides of attention, which these kernels don't keep anyway.
    """
    kernels, context_tokens = KERNELS[trainer], tokens / layout.context_parallel
    num_dense = arch.num_layers - arch.num_expert_layers

    def kept(has_experts: bool) -> float:
        imbalance = ASSUMPTIONS.expert_imbalance if layout.expert_parallel > 1 else 1.0
        return layer_elements(arch, layout, kernels, has_experts=has_experts, imbalance=imbalance)

    sequence = layout.tensor_parallel if layout.sequence_parallel else 1
    elements = kernels.norm * arch.hidden_size / sequence  # the last norm
    if layout.recompute == "full":
        elements += arch.num_layers * arch.hidden_size / sequence + kept(bool(arch.num_experts))
    else:
        elements += num_dense * kept(False) + arch.num_expert_layers * kept(True)
    return context_tokens * elements * element_bytes


def logit_bytes(arch: ArchitectureSettings, layout: LayoutSettings, tokens: float) -> float:
    """Of a micro-batch all of whose tokens are trained."""
    return tokens / layout.context_parallel * arch.vocab_size / layout.tensor_parallel * LOGIT_COPIES * 4
