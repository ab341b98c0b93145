"""Whether a policy can be cut over a stage's GPUs as its layout says."""

from __future__ import annotations

from rufus_core.errors import ConfigError
from rufus_core.settings import ArchitectureSettings, LayoutSettings
from rufus_core.types import Frozen


class Ranks(Frozen):
    """How many GPUs share what. `data` and `expert_data` hold the same parameters and share their optimizer state."""

    gpus: int
    data: int  # copies of what isn't an expert
    expert_data: int  # copies of each expert


def cut(arch: ArchitectureSettings, layout: LayoutSettings, gpus: int, where: str) -> Ranks:
    """The ranks of a layout. `where` is the layout's place in the recipe.

    Raises:
        ConfigError: something doesn't divide, or Megatron-core refuses the combination.
    """
    tensor, pipeline, expert = layout.tensor_parallel, layout.pipeline_parallel, layout.expert_parallel
    _divide(arch.num_heads, "attention heads", tensor, f"{where}.tensor_parallel")
    _divide(arch.num_kv_heads, "key and value heads", tensor, f"{where}.tensor_parallel")
    _divide(arch.num_layers, "layers", pipeline, f"{where}.pipeline_parallel")
    if expert > 1 and not arch.num_experts:
        raise ConfigError("the policy has no experts", where=f"{where}.expert_parallel", hint="set it to 1")
    _divide(arch.num_experts, "experts", expert, f"{where}.expert_parallel")
    _divide(gpus, "GPUs", layout.model_parallel, f"{where} (tensor x pipeline x context parallel)")
    _divide(gpus // pipeline, "GPUs of a pipeline stage", expert, f"{where}.expert_parallel")
    if arch.num_experts and tensor > 1 and not layout.sequence_parallel:
        raise ConfigError(
            "experts are trained with tensor_parallel only where sequences are cut too",
            where=f"{where}.sequence_parallel",
            hint="set it to true",
        )
    return Ranks(gpus=gpus, data=gpus // layout.model_parallel, expert_data=gpus // (pipeline * expert))


def cut_engine(arch: ArchitectureSettings, gpus: int, gpus_of_engine: int, where: str) -> int:
    """The number of rollout engines, each of which cuts the policy over its GPUs.

    Raises:
        ConfigError: heads or GPUs can't be divided so. Key and value heads may be held several times.
    """
    _divide(gpus, "GPUs", gpus_of_engine, where)
    _divide(arch.num_heads, "attention heads", gpus_of_engine, where)
    if gpus_of_engine % arch.num_kv_heads:
        _divide(arch.num_kv_heads, "key and value heads", gpus_of_engine, where)
    return gpus // gpus_of_engine


def _divide(whole: int, noun: str, parts: int, where: str) -> None:
    if whole % parts:
        divisors = [n for n in range(1, min(whole, 64) + 1) if whole % n == 0]
        raise ConfigError(
            f"{whole} {noun} can't be cut into {parts} equal parts",
            where=where,
            hint=f"{', '.join(map(str, divisors))} can",
        )
