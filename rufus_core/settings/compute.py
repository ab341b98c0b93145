"""Which machines a stage has, and how its policy is cut over them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rufus_core.settings.architecture import NonNegative, Positive
from rufus_core.settings.planning import LoadSettings
from rufus_core.types import Frozen


class LayoutSettings(Frozen):
    """How a policy is cut over the ranks that train it, in Megatron-core's terms. The rest is data parallel."""

    tensor_parallel: Positive = 1
    pipeline_parallel: Positive = 1
    expert_parallel: Positive = 1
    context_parallel: Positive = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    micro_batch_tokens: Positive = 2048  # or the longest sequence, if that is longer

    @property
    def model_parallel(self) -> int:
        """Ranks that hold one copy of what isn't an expert."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel


class ComputeSettings(Frozen):
    """Placement: never part of a fingerprint."""

    nodes: Positive = 1
    gpus_per_node: NonNegative = 0
    gpu: Literal["h100", "h200"] = "h200"
    extra_nodes: NonNegative = 0
    extra_nodes_role: str | None = None
    gpus_per_rollout_engine: Positive | None = None  # None: a whole node
    colocated_rollout: bool | None = None  # False: engines have the extra nodes, whose role is then "rollout"
    distributed_rollout: bool = False
    layout: LayoutSettings | None = None  # None: execution's
    load: LoadSettings | None = None  # None: the plan says nothing of time and cost
    wall_clock: dict[str, float] = Field(default_factory=dict)  # as the paper prints it

    @property
    def colocated(self) -> bool:
        """Whether rollout engines have the trainer's GPUs, in turns with it."""
        return self.colocated_rollout is not False
