"""The engines that roll out a stage's policy."""

from __future__ import annotations

from rufus_core.errors import ConfigError
from rufus_core.recipe.footprint.gpus import Gpu
from rufus_core.recipe.footprint.memory import RolloutMemory, refuse_rollout, rollout_memory
from rufus_core.recipe.footprint.sequences import longest_sequence
from rufus_core.settings import ArchitectureSettings, ComputeSettings, RLStage
from rufus_core.settings.layout import cut_engine
from rufus_core.types import Frozen

ROLLOUT = "rollout"  # role of extra nodes


class EngineFootprint(Frozen):
    """Rollout engines. `cache_tokens` is what one of them holds at once."""

    engines: int
    gpus: int  # of each
    colocated: bool
    memory: RolloutMemory
    cache_tokens: float


def engine_footprint(
    stage: RLStage, name: str, arch: ArchitectureSettings, gpu: Gpu, trainer_bytes: float
) -> EngineFootprint:
    """Engines have the trainer's GPUs, on which `trainer_bytes` stay, or those of the extra nodes.

    Raises:
        ConfigError: no GPUs are theirs, the policy can't be cut over them, or they can't hold the longest rollout.
    """
    compute = stage.compute
    nodes = compute.nodes if compute.colocated else _rollout_nodes(compute, name)
    place = f"stages.{name}.compute.gpus_per_rollout_engine"
    of_engine = compute.gpus_per_rollout_engine or compute.gpus_per_node
    engines = cut_engine(arch, nodes * compute.gpus_per_node, of_engine, place)
    memory = rollout_memory(arch, stage.precision, gpu, of_engine, trainer_bytes if compute.colocated else 0.0)
    refuse_rollout(memory, of_engine, longest_sequence(stage, arch), place)
    return EngineFootprint(
        engines=engines,
        gpus=of_engine,
        colocated=compute.colocated,
        memory=memory,
        cache_tokens=memory.kv_cache * of_engine / memory.kv_bytes_per_token,
    )


def _rollout_nodes(compute: ComputeSettings, name: str) -> int:
    if compute.extra_nodes_role != ROLLOUT or not compute.extra_nodes:
        raise ConfigError(
            "rollouts share no GPU with the trainer, and no other node is theirs",
            where=f"stages.{name}.compute.colocated_rollout",
            hint=f"set it to true, or give extra_nodes with extra_nodes_role: {ROLLOUT}",
        )
    return compute.extra_nodes
