"""Bytes of GPU memory by term, while a stage trains and while it rolls out; a term that is too big is named."""

from __future__ import annotations

from rufus_core.errors import ConfigError
from rufus_core.recipe.footprint.activations import activation_bytes, logit_bytes
from rufus_core.recipe.footprint.gpus import ASSUMPTIONS, GB, Gpu
from rufus_core.recipe.footprint.parameters import count_parameters, rank_parameters
from rufus_core.settings import ArchitectureSettings, LayoutSettings, PrecisionSettings
from rufus_core.settings.layout import Ranks
from rufus_core.types import Frozen

BYTES = {"fp8": 1, "bf16": 2, "fp32": 4}
GRADIENT_BYTES = 4  # summed in fp32 whatever is trained in


class TrainingMemory(Frozen):
    """Bytes of the GPU that holds most. `reference` is a second policy, where the stage pays for distance from it."""

    weights: float
    gradients: float
    optimizer: float
    reference: float
    activations: float
    logits: float

    @property
    def resident(self) -> float:
        """What stays while engines roll out."""
        return self.weights + self.gradients + self.optimizer + self.reference

    @property
    def total(self) -> float:
        return self.resident + self.activations + self.logits


class RolloutMemory(Frozen):
    """Bytes of a GPU of an engine. `kv_cache` is what the others leave."""

    weights: float
    trainer: float  # what stays of it where both share GPUs
    kv_cache: float
    kv_bytes_per_token: float  # on all GPUs of the engine

    @property
    def total(self) -> float:
        return self.weights + self.trainer + self.kv_cache


def training_memory(
    arch: ArchitectureSettings,
    layout: LayoutSettings,
    ranks: Ranks,
    *,
    trainer: str,
    precision: str,
    has_reference: bool,
    tokens: float,
) -> TrainingMemory:
    """With AdamW: two moments in fp32, and the weights in fp32 where they are trained in less.

    The distributed optimizer cuts this over the ranks that hold the same parameters. `tokens` are of a micro-batch.
    """
    state = 8 if precision == "fp32" else 12
    shards = (ranks.data * layout.context_parallel, ranks.expert_data) if layout.distributed_optimizer else (1, 1)
    rank = max(rank_parameters(arch, layout), key=lambda stage: stage.total)
    weights = BYTES[precision] * rank.total
    return TrainingMemory(
        weights=weights,
        gradients=GRADIENT_BYTES * rank.total,
        optimizer=state * (rank.shared / shards[0] + rank.experts / shards[1]),
        reference=weights if has_reference else 0.0,
        activations=activation_bytes(arch, layout, trainer, tokens, BYTES[precision]),
        logits=logit_bytes(arch, layout, tokens),
    )


def kv_bytes_per_token(arch: ArchitectureSettings, gpus_of_engine: int) -> float:
    """Keys and values of all layers in BF16, on all GPUs of an engine: more of them than heads hold some twice."""
    copies = max(gpus_of_engine / arch.num_kv_heads, 1.0)
    return 2 * arch.num_layers * arch.num_kv_heads * arch.head_dim * BYTES["bf16"] * copies


def engine_weight_bytes(arch: ArchitectureSettings, precision: PrecisionSettings) -> float:
    """Of the whole policy. With FP8 the layers' products are FP8 but for the first ones (SLM-07); the rest is BF16."""
    counts, width = count_parameters(arch), BYTES[precision.rollout]
    if precision.rollout != "fp8":
        return counts.total * width
    share = 1 - min(precision.rollout_bf16_first_layers / arch.num_layers, 1.0)
    return counts.total * BYTES["bf16"] - counts.in_layers * share * (BYTES["bf16"] - width)


def rollout_memory(
    arch: ArchitectureSettings, precision: PrecisionSettings, gpu: Gpu, gpus_of_engine: int, trainer_bytes: float
) -> RolloutMemory:
    weights = engine_weight_bytes(arch, precision) / gpus_of_engine
    left = gpu.memory_bytes - ASSUMPTIONS.reserve_bytes - weights - trainer_bytes
    return RolloutMemory(
        weights=weights,
        trainer=trainer_bytes,
        kv_cache=left,
        kv_bytes_per_token=kv_bytes_per_token(arch, gpus_of_engine),
    )


def refuse_training(memory: TrainingMemory, gpu: Gpu, where: str) -> None:
    """Raises ConfigError with the largest term where training needs more than a GPU has."""
    room = gpu.memory_bytes - ASSUMPTIONS.reserve_bytes
    if memory.total > room:
        terms = {name: getattr(memory, name) for name in TrainingMemory.model_fields}
        name = max(terms, key=lambda term: terms[term])
        raise ConfigError(
            f"training needs {_gb(memory.total)} on each GPU, which has room for {_gb(room)}; "
            f"its largest term is {name}, {_gb(terms[name])}",
            where=where,
            hint=_REMEDY[name],
        )


def refuse_rollout(memory: RolloutMemory, gpus_of_engine: int, longest: int, where: str) -> None:
    """Raises ConfigError where an engine can't hold one sequence of the longest kind."""
    needed = longest * memory.kv_bytes_per_token / gpus_of_engine
    if memory.kv_cache < needed:
        term = max(("trainer", "weights"), key=lambda name: getattr(memory, name))
        raise ConfigError(
            f"a rollout of {longest:,} tokens needs {_gb(needed)} of kv_cache on each GPU of an engine, and "
            f"{_gb(max(memory.kv_cache, 0.0))} are left; the largest term is {term}, {_gb(getattr(memory, term))}",
            where=where,
            hint="more GPUs for an engine, or more of them over which the trainer is cut",
        )


_REMEDY = {
    "weights": "more tensor_parallel, pipeline_parallel or expert_parallel",
    "gradients": "more tensor_parallel, pipeline_parallel or expert_parallel",
    "optimizer": "distributed_optimizer: true, more GPUs, or a smaller policy",
    "reference": "more tensor_parallel or expert_parallel, or algorithm.kl_coef 0",
    "activations": "recompute: full, more tensor_parallel with sequence_parallel, or a shorter budget",
    "logits": "more tensor_parallel, or a shorter budget",
}


def _gb(count: float) -> str:
    return f"{count / GB:,.1f} GB"
