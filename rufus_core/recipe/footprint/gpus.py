"""The constants of the roofline: what a GPU can do at most, and what share of it the plan assumes."""

from __future__ import annotations

from rufus_core.types import Frozen

GB = 1e9


class Gpu(Frozen):
    """Peaks of one GPU: FLOP/s of dense products (without sparsity), bytes, bytes/s."""

    name: str
    memory_bytes: float
    memory_bandwidth: float
    flops: dict[str, float]  # by precision
    source: str


HOPPER_FLOPS = {"fp8": 1979e12, "bf16": 989.5e12, "fp32": 67e12}  # half of the printed numbers "with sparsity"
GPUS = {
    "h100": Gpu(
        name="NVIDIA H100 SXM",
        memory_bytes=80 * GB,
        memory_bandwidth=3.35e12,
        flops=HOPPER_FLOPS,
        source="NVIDIA H100 data sheet",
    ),
    "h200": Gpu(
        name="NVIDIA H200 SXM",
        memory_bytes=141 * GB,
        memory_bandwidth=4.8e12,
        flops=HOPPER_FLOPS,
        source="NVIDIA H200 data sheet",
    ),
}


class Assumptions(Frozen):
    """Shares of the peaks that a plan reckons with. None is measured here: no GPU has run this."""

    flops_share: float = 0.25  # of training and of reading prompts; what is computed again counts as work
    bandwidth_share: float = 0.6  # of decoding
    reserve_bytes: float = 10 * GB  # CUDA context, buffers of NCCL, fragmentation
    expert_imbalance: float = 1.25  # tokens of the busiest rank of experts, against an even share


ASSUMPTIONS = Assumptions()
