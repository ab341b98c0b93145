"""Which layouts a policy can be trained in: refused before a process group is built, in the recipe's own words."""

from __future__ import annotations

import importlib.util

from transformers import PretrainedConfig

from rufus_core.errors import ConfigError
from rufus_core.settings import LayoutSettings

_WHERE = "execution.layout"


def require_megatron() -> None:
    """Raises ConfigError where Megatron-core isn't installed."""
    if missing := [name for name in ("megatron", "mbridge") if importlib.util.find_spec(name) is None]:
        raise ConfigError(
            f"training with Megatron-core needs {' and '.join(missing)}",
            where="execution.trainer",
            hint="make install-megatron, or set it to torch",
        )


def has_transformer_engine() -> bool:
    return importlib.util.find_spec("transformer_engine") is not None


def check_layout(config: PretrainedConfig, layout: LayoutSettings, num_ranks: int) -> None:
    """Refuse what Megatron-core would train wrongly or not at all.

    Raises:
        ConfigError: the policy is of another family or shape, or it can't be cut so.
    """
    _check_policy(config)
    tensor, pipeline, experts = layout.tensor_parallel, layout.pipeline_parallel, layout.expert_parallel
    _divides("tensor_parallel", tensor, config.num_attention_heads, "attention heads")
    _divides("tensor_parallel", tensor, config.num_key_value_heads, "key and value heads")
    _divides("pipeline_parallel", pipeline, config.num_hidden_layers, "layers")
    _divides("expert_parallel", experts, config.n_routed_experts, "experts")
    _divides("model_parallel", layout.model_parallel, num_ranks, "ranks")
    # An expert is whole on its rank, so experts are spread over the tensor and data parallel ranks of a pipeline stage.
    _divides("expert_parallel", experts, num_ranks // pipeline, "ranks of a pipeline stage")
    if tensor > 1 and not layout.sequence_parallel:
        raise ConfigError(
            "experts are trained with tensor_parallel only where sequences are cut too",
            where=f"{_WHERE}.sequence_parallel",
            hint="set it to true",
        )
    if tensor == 1 and layout.sequence_parallel:
        raise ConfigError(
            "sequence_parallel cuts over the ranks of tensor_parallel, which is 1",
            where=f"{_WHERE}.sequence_parallel",
            hint="set it to false, or tensor_parallel to 2 or more",
        )
    if tensor > 1 and experts == 1:
        raise ConfigError(
            "with tensor_parallel and expert_parallel 1 the experts can't be written as a Hugging Face policy",
            where=f"{_WHERE}.expert_parallel",
            hint="set it to 2 or more",
        )
    if layout.context_parallel > 1:
        raise ConfigError(
            "context_parallel needs TransformerEngine's attention, and sequences are not cut for it yet",
            where=f"{_WHERE}.context_parallel",
            hint="set it to 1, and cut by tensor_parallel with sequence_parallel",
        )
    if layout.distributed_optimizer and not has_transformer_engine():
        raise ConfigError(
            "no training can go on from the state of a distributed optimizer over torch's AdamW",
            where=f"{_WHERE}.distributed_optimizer",
            hint="install TransformerEngine, whose AdamW it is made for, or set it to false",
        )


def _divides(name: str, parts: int, whole: int, noun: str) -> None:
    if whole % parts:
        raise ConfigError(
            f"{whole} {noun} can't be cut into {parts} equal parts",
            where=f"{_WHERE}.{name}",
            hint=f"take a divisor of {whole}",
        )


def _check_policy(config: PretrainedConfig) -> None:
    """Megatron's router normalises the weights of several experts out of one group, and nothing else."""
    if config.model_type != "glm4_moe":
        raise ConfigError(
            f"Megatron-core trains GLM-4.5 with experts (glm4_moe) here, and this policy is a {config.model_type}",
            where="execution.trainer",
            hint="set it to torch",
        )
    if config.n_group != 1 or config.num_experts_per_tok < 2 or not config.norm_topk_prob:
        raise ConfigError(
            f"this policy routes by groups ({config.n_group}), to one expert ({config.num_experts_per_tok} taken), "
            f"or doesn't normalise weights (norm_topk_prob {config.norm_topk_prob}): not as GLM-4.5 does",
            where="execution.trainer",
            hint="set it to torch",
        )
