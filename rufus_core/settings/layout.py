"""Whether a policy can be cut over ranks as a layout says: one set of rules, for the plan and for what trains."""

from __future__ import annotations

from rufus_core.errors import ConfigError
from rufus_core.settings.architecture import ArchitectureSettings
from rufus_core.settings.compute import LayoutSettings
from rufus_core.types import Frozen

MEGATRON_FAMILY = "glm4_moe"


class Ranks(Frozen):
    """How many ranks share what. `data` and `expert_data` hold the same parameters and share their optimizer state."""

    gpus: int  # one for each rank
    data: int  # copies of what isn't an expert
    expert_data: int  # copies of each expert


def cut(arch: ArchitectureSettings, layout: LayoutSettings, ranks: int, where: str) -> Ranks:
    """The ranks of a layout. `where` is the layout's place in the recipe.

    Raises:
        ConfigError: something doesn't divide, or Megatron-core would train this combination wrongly or not at all.
    """
    tensor, pipeline, expert = layout.tensor_parallel, layout.pipeline_parallel, layout.expert_parallel
    _divide(arch.num_heads, "attention heads", tensor, f"{where}.tensor_parallel")
    _divide(arch.num_kv_heads, "key and value heads", tensor, f"{where}.tensor_parallel")
    _divide(arch.num_layers, "layers", pipeline, f"{where}.pipeline_parallel")
    if expert > 1 and not arch.num_experts:
        raise ConfigError("the policy has no experts", where=f"{where}.expert_parallel", hint="set it to 1")
    _divide(arch.num_experts, "experts", expert, f"{where}.expert_parallel")
    data = data_parallel_of(ranks, layout, where)
    # An expert is whole on its rank, so experts are spread over the tensor and data parallel ranks of a pipeline stage.
    _divide(ranks // pipeline, "ranks of a pipeline stage", expert, f"{where}.expert_parallel")
    _refuse_combinations(arch, layout, where)
    return Ranks(gpus=ranks, data=data, expert_data=ranks // (pipeline * expert))


def data_parallel_of(ranks: int, layout: LayoutSettings, where: str) -> int:
    """Copies of the policy over so many ranks. Raises ConfigError where they can't be divided so."""
    _divide(ranks, "ranks", layout.model_parallel, f"{where} (tensor x pipeline x context parallel)")
    return ranks // layout.model_parallel


def _refuse_combinations(arch: ArchitectureSettings, layout: LayoutSettings, where: str) -> None:
    tensor = layout.tensor_parallel
    if arch.num_experts and tensor > 1 and not layout.sequence_parallel:
        raise ConfigError(
            "experts are trained with tensor_parallel only where sequences are cut too",
            where=f"{where}.sequence_parallel",
            hint="set it to true",
        )
    if tensor == 1 and layout.sequence_parallel:
        raise ConfigError(
            "sequence_parallel cuts over the ranks of tensor_parallel, which is 1",
            where=f"{where}.sequence_parallel",
            hint="set it to false, or tensor_parallel to 2 or more",
        )
    if arch.num_experts and tensor > 1 and layout.expert_parallel == 1:
        raise ConfigError(
            "with tensor_parallel and expert_parallel 1 the experts can't be written as a Hugging Face policy",
            where=f"{where}.expert_parallel",
            hint="set it to 2 or more",
        )
    if layout.context_parallel > 1:
        raise ConfigError(
            "context_parallel needs TransformerEngine's attention, and sequences are not cut for it yet",
            where=f"{where}.context_parallel",
            hint="set it to 1, and cut by tensor_parallel with sequence_parallel",
        )


def refuse_family(arch: ArchitectureSettings) -> None:
    """Raises ConfigError where Megatron-core can't train such a policy here; one whose family isn't said may pass."""
    if arch.model_type not in (None, MEGATRON_FAMILY) or not arch.num_experts:
        shown = f"{arch.model_type or 'policy'}{'' if arch.num_experts else ' without experts'}"
        raise ConfigError(
            f"Megatron-core trains GLM-4.5 with experts ({MEGATRON_FAMILY}) here, and this is a {shown}",
            where="execution.trainer",
            hint="--set execution.trainer=torch",
        )


def refuse_uncut(layout: LayoutSettings, where: str) -> None:
    """Of a layout the torch trainer takes `micro_batch_tokens` alone: raises ConfigError for the rest."""
    plain = LayoutSettings(micro_batch_tokens=layout.micro_batch_tokens)
    if asked := [name for name in LayoutSettings.model_fields if getattr(layout, name) != getattr(plain, name)]:
        raise ConfigError(
            f"the torch trainer holds the whole policy on each rank, and knows nothing of {', '.join(asked)}",
            where=where,
            hint="--set execution.trainer=megatron, or leave that out",
        )


def cut_engine(arch: ArchitectureSettings, gpus: int, gpus_of_engine: int, where: str) -> int:
    """The number of rollout engines, each of which cuts the policy over its GPUs.

    Raises:
        ConfigError: heads or GPUs can't be divided so. Key and value heads may be held several times.
    """
    engines = num_engines_of(gpus, gpus_of_engine, where)
    _divide(arch.num_heads, "attention heads", gpus_of_engine, where)
    if gpus_of_engine % arch.num_kv_heads:
        _divide(arch.num_kv_heads, "key and value heads", gpus_of_engine, where)
    return engines


def num_engines_of(gpus: int, gpus_of_engine: int, where: str) -> int:
    """Raises ConfigError where the GPUs can't be divided so."""
    _divide(gpus, "GPUs", gpus_of_engine, where)
    return gpus // gpus_of_engine


def _divide(whole: int, noun: str, parts: int, where: str) -> None:
    if whole % parts:
        divisors = [n for n in range(1, min(whole, 64) + 1) if whole % n == 0]
        raise ConfigError(
            f"{whole} {noun} can't be cut into {parts} equal parts",
            where=where,
            hint=f"{', '.join(map(str, divisors))} can",
        )
