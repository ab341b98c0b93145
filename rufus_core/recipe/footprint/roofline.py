"""Seconds of a step from FLOPs, bytes and peaks: no communication, no tools, no waiting for the longest of a batch."""

from __future__ import annotations

from typing import Literal

from rufus_core.recipe.footprint.gpus import ASSUMPTIONS, Gpu
from rufus_core.recipe.footprint.memory import RolloutMemory, engine_weight_bytes
from rufus_core.recipe.footprint.parameters import count_parameters
from rufus_core.settings import ArchitectureSettings, LoadSettings, PrecisionSettings
from rufus_core.types import Frozen

Bound = Literal["memory bandwidth", "arithmetic", "longest response"]


class RolloutTime(Frozen):
    """`seconds` are those of the bound. `running` sequences share an engine, as its KV cache has room for them."""

    seconds: float
    bound: Bound
    running: float
    tokens_per_second: float  # sampled, on all GPUs


def forward_flops(arch: ArchitectureSettings, sequence_tokens: float) -> float:
    """Of one token: two for each active parameter, and causal attention over a sequence of this length.

    A token looks at half of its sequence in the mean, and each pair costs 4 FLOPs for each number of a query.
    """
    attention = 4 * arch.num_layers * arch.num_heads * arch.head_dim * sequence_tokens / 2
    return 2 * count_parameters(arch).active + attention


def forward_seconds(
    arch: ArchitectureSettings, sequence_tokens: float, tokens: float, gpu: Gpu, gpus: int, precision: str
) -> float:
    """To put so many tokens through the model once."""
    return tokens * forward_flops(arch, sequence_tokens) / (gpus * gpu.flops[precision] * ASSUMPTIONS.flops_share)


def training_passes(recompute: str) -> int:
    """Forward passes that a training step costs: a backward pass is two, and `full` computes layers again."""
    return 4 if recompute == "full" else 3


def rollout_time(
    arch: ArchitectureSettings,
    precision: PrecisionSettings,
    load: LoadSettings,
    memory: RolloutMemory,
    *,
    gpu: Gpu,
    gpus: int,
    gpus_of_engine: int,
    sequences: float,
    samples: int,
    longest_response: int,
) -> RolloutTime:
    """For so many sequences. A group's prompt is read once, what a tool answers once for each sequence.

    A decode step reads the weights that its tokens are routed to and the keys and values of what runs, and multiplies
    each token with the active parameters; it takes as long as the slower of both. No rollout is shorter than its
    longest response, alone on an engine.
    """
    engines = gpus / gpus_of_engine
    per_engine = sequences / engines
    held = load.prompt_tokens + load.observation_tokens + load.response_tokens / 2  # in the mean of a sequence's life
    room = memory.kv_cache * gpus_of_engine / (held * memory.kv_bytes_per_token)
    running = max(min(per_engine, room), 1.0)

    def step_seconds(batch: float, context: float) -> tuple[float, Bound]:
        bytes_read = _weights_read(arch, precision, batch) + batch * context * memory.kv_bytes_per_token
        bandwidth = bytes_read / (gpus_of_engine * gpu.memory_bandwidth * ASSUMPTIONS.bandwidth_share)
        flops = batch * forward_flops(arch, 2 * context)
        arithmetic = flops / (gpus_of_engine * gpu.flops[precision.rollout] * ASSUMPTIONS.flops_share)
        return (arithmetic, "arithmetic") if arithmetic > bandwidth else (bandwidth, "memory bandwidth")

    one_step, bound = step_seconds(running, held)
    read = sequences * (load.prompt_tokens / samples + load.observation_tokens)
    reading = forward_seconds(arch, load.prompt_tokens, read, gpu, gpus, precision.rollout)
    seconds = per_engine * load.response_tokens / running * one_step + reading
    alone, _ = step_seconds(1.0, load.prompt_tokens + longest_response / 2)
    if longest_response * alone > seconds:
        seconds, bound = longest_response * alone, "longest response"
    rate = sequences * load.response_tokens / seconds if seconds else 0.0
    return RolloutTime(seconds=seconds, bound=bound, running=running, tokens_per_second=rate)


def _weights_read(arch: ArchitectureSettings, precision: PrecisionSettings, batch: float) -> float:
    """Bytes of weights that a decode step of so many tokens touches: of experts, the share that a token falls to."""
    counts, all_bytes = count_parameters(arch), engine_weight_bytes(arch, precision)
    if not arch.num_experts:
        return all_bytes
    missed: float = (1 - arch.experts_per_token / arch.num_experts) ** batch
    return all_bytes * (1 - missed * counts.experts / counts.total)
