"""The roofline against FLOPs that torch counts, and against what must hold of any roofline."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen3Config

from rufus_core.recipe.footprint.gpus import ASSUMPTIONS, GPUS
from rufus_core.recipe.footprint.memory import rollout_memory
from rufus_core.recipe.footprint.roofline import RolloutTime, forward_flops, forward_seconds, rollout_time
from rufus_core.settings import LoadSettings, PrecisionSettings
from rufus_core.settings.architecture import read_architecture
from tests.recipe.footprint.models import GLM_4_5_AIR

AIR, H200 = read_architecture(GLM_4_5_AIR.to_dict()), GPUS["h200"]


def test_flops_of_a_forward_pass_are_those_that_torch_counts() -> None:
    config = Qwen3Config(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, attn_implementation="eager",
    )  # fmt: skip
    model, tokens = AutoModelForCausalLM.from_config(config), 256
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros((1, tokens), dtype=torch.long))
    arch = read_architecture(config.to_dict())
    # eager attention multiplies the whole square of a sequence with itself, a causal kernel half of it
    eager = forward_flops(arch, 2 * tokens) * tokens
    vectors = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 1)
    assert counter.get_total_flops() == pytest.approx(eager - 2 * tokens * vectors, rel=1e-3)


def rolled_out(gpus: int = 64, sequences: float = 4096, response: float = 8000, longest: int = 16000) -> RolloutTime:
    precision, load = PrecisionSettings(rollout="bf16"), LoadSettings(prompt_tokens=200, response_tokens=response)
    memory = rollout_memory(AIR, precision, H200, 8, 40e9)
    return rollout_time(
        AIR, precision, load, memory, gpu=H200, gpus=gpus, gpus_of_engine=8, sequences=sequences, samples=16,
        longest_response=longest,
    )  # fmt: skip


@given(st.sampled_from([8, 16, 64, 256]), st.integers(16, 20000))
def test_more_gpus_are_never_slower_and_more_sequences_never_faster(gpus: int, sequences: int) -> None:
    here = rolled_out(gpus, sequences)
    assert rolled_out(2 * gpus, sequences).seconds <= here.seconds * (1 + 1e-9)
    assert rolled_out(gpus, 2 * sequences).seconds >= here.seconds * (1 - 1e-9)


@given(st.sampled_from([8, 64, 512]), st.integers(1, 20000))
def test_no_rollout_reads_memory_faster_than_the_gpus_do(gpus: int, sequences: int) -> None:
    """Each sampled token reads at least its own keys and values, and each step all weights that every token uses."""
    found = rolled_out(gpus, sequences)
    kv_read = sequences * 8000 * (200 + 8000 / 2) * 188_416  # bytes: 46 layers x 8 heads x 128 x 2 x 2
    assert found.seconds >= kv_read / (gpus * H200.memory_bandwidth)


def test_the_longest_response_bounds_a_rollout_with_too_few_sequences() -> None:
    few = rolled_out(gpus=512, sequences=64, response=100, longest=30000)
    assert few.bound == "longest response"
    assert rolled_out().bound == "memory bandwidth"


def test_training_time_is_flops_by_the_share_of_the_peak() -> None:
    tokens = 1e6
    seconds = forward_seconds(AIR, 4096, tokens, H200, 512, "bf16")
    assert seconds == tokens * forward_flops(AIR, 4096) / (512 * 989.5e12 * ASSUMPTIONS.flops_share)
    assert forward_seconds(AIR, 8192, tokens, H200, 512, "bf16") > seconds
