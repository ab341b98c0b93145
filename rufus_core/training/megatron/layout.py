"""Which layouts a policy can be trained in: refused before a process group is built, in the recipe's own words."""

from __future__ import annotations

import importlib.util

from transformers import PretrainedConfig

from rufus_core.errors import ConfigError
from rufus_core.settings import LayoutSettings
from rufus_core.settings.architecture import read_architecture
from rufus_core.settings.layout import cut, refuse_family

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
    arch = read_architecture(config.to_dict())
    refuse_family(arch)
    _check_router(config)
    cut(arch, layout, num_ranks, _WHERE)
    if layout.distributed_optimizer and not has_transformer_engine():
        raise ConfigError(
            "no training can go on from the state of a distributed optimizer over torch's AdamW",
            where=f"{_WHERE}.distributed_optimizer",
            hint="install TransformerEngine, whose AdamW it is made for, or set it to false",
        )


def _check_router(config: PretrainedConfig) -> None:
    """Megatron's router normalises the weights of several experts out of one group, and nothing else."""
    if config.n_group != 1 or config.num_experts_per_tok < 2 or not config.norm_topk_prob:
        raise ConfigError(
            f"this policy routes by groups ({config.n_group}), to one expert ({config.num_experts_per_tok} taken), "
            f"or doesn't normalise weights (norm_topk_prob {config.norm_topk_prob}): not as GLM-4.5 does",
            where="execution.trainer",
            hint="set it to torch",
        )
