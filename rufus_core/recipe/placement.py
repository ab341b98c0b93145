"""Which trainer, engine and launcher can carry out a stage: what can't be is refused before anything runs."""

from __future__ import annotations

from rufus_core.errors import ConfigError
from rufus_core.recipe.footprint.stage import architecture_of, layout_place, stage_footprint
from rufus_core.settings import ExecutionSettings, Recipe, RLStage, SFTStage
from rufus_core.settings.layout import data_parallel_of, refuse_family, refuse_uncut


def refuse_placement(recipe: Recipe) -> None:
    """Raises ConfigError with the field and the `--set` that mends it; for a layout that can't fit as `plan` does.

    Whether the GPUs are there the job finds out.
    """
    for name, stage in recipe.stages.items():
        _refuse_precision(recipe.execution, stage, f"stages.{name}.precision")
        _refuse_launcher(recipe.execution, stage, f"stages.{name}.compute")
        _refuse_layout(recipe, name, stage)
        stage_footprint(recipe, name)


def _refuse_precision(execution: ExecutionSettings, stage: SFTStage | RLStage, where: str) -> None:
    precision, gpus = stage.precision, stage.compute.gpus_per_node
    if precision.train == "bf16" and execution.trainer == "torch":
        raise ConfigError(
            "the torch trainer computes in fp32",
            where=f"{where}.train",
            hint=f"--set {where}.train=fp32, or --set execution.trainer=megatron",
        )
    if isinstance(stage, SFTStage):  # rolls out nothing
        return
    if execution.engine == "embedded" and gpus:
        raise ConfigError(
            "the embedded engine computes on a CPU, and this stage names GPUs",
            where="execution.engine",
            hint="--set execution.engine=sglang",
        )
    if execution.engine == "embedded" and precision.rollout != "fp32":
        raise ConfigError(
            f"the embedded engine rolls out in fp32, and not in {precision.rollout}",
            where=f"{where}.rollout",
            hint=f"--set {where}.rollout=fp32, or --set execution.engine=sglang",
        )
    if execution.engine == "embedded" and precision.train != "fp32":
        raise ConfigError(
            f"the embedded engine would roll out in {precision.train}, in which this stage is trained, and not in fp32",
            where=f"{where}.train",
            hint=f"--set {where}.train=fp32, or --set execution.engine=sglang",
        )
    if precision.rollout == "fp8" and not gpus and not execution.sglang.urls:
        raise ConfigError(
            "FP8 needs GPUs, and this stage names none",
            where=f"{where}.rollout",
            hint=f"--set {where}.rollout=bf16, or --set {where.removesuffix('precision')}compute.gpus_per_node=8",
        )


def _refuse_launcher(execution: ExecutionSettings, stage: SFTStage | RLStage, where: str) -> None:
    nodes = stage.compute.nodes + stage.compute.extra_nodes
    if nodes == 1:
        return
    if execution.launcher == "local":
        raise ConfigError(
            f"this stage has {nodes} nodes, and jobs of the launcher local stay on this machine",
            where="execution.launcher",
            hint="--set 'execution={launcher: ray, ray_dashboard: \"http://HEAD:8265\"}', or "
            f"--set '{where}={{nodes: 1, extra_nodes: 0}}'",
        )
    if execution.kubernetes is not None and execution.launcher == "kubernetes" and execution.kubernetes.kind == "job":
        raise ConfigError(
            f"a Kubernetes Job has one node, and this stage has {nodes}",
            where="execution.kubernetes.kind",
            hint="--set 'execution={ray_address: \"127.0.0.1:6379\", kubernetes: {kind: rayjob}}'",
        )


def _refuse_layout(recipe: Recipe, name: str, stage: SFTStage | RLStage) -> None:
    """What needs no memory of a GPU to be known."""
    compute, place = stage.compute, layout_place(name, stage.compute)
    layout = compute.layout or recipe.execution.layout
    if recipe.execution.trainer == "torch":
        refuse_uncut(layout, place)
    elif (arch := architecture_of(recipe.base)) is not None:
        refuse_family(arch)
    if compute.gpus_per_node:
        data_parallel_of(compute.nodes * compute.gpus_per_node, layout, place)
