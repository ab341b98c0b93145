"""The footprint of one stage: how its policy is cut, what its GPUs hold, how long its steps take, what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rufus_core.errors import ConfigError
from rufus_core.recipe.footprint.engines import EngineFootprint, engine_footprint
from rufus_core.recipe.footprint.gpus import GPUS
from rufus_core.recipe.footprint.memory import TrainingMemory, refuse_training, training_memory
from rufus_core.recipe.footprint.pace import PrintedPace, printed_pace
from rufus_core.recipe.footprint.phases import PhaseFootprint, phase_footprints
from rufus_core.recipe.footprint.sequences import longest_sequence
from rufus_core.recipe.footprint.services import Calls, calls, price
from rufus_core.settings import (
    ArchitectureSettings,
    BaseModelSettings,
    ComputeSettings,
    LayoutSettings,
    Recipe,
    RLStage,
    SFTStage,
)
from rufus_core.settings.architecture import read_architecture
from rufus_core.settings.layout import Ranks, cut, refuse_family, refuse_uncut
from rufus_core.types import Frozen


class RunFootprint(Frozen):
    """All steps of a stage, by the roofline. Prices in the recipe's currency; None where nothing has a price."""

    gpu_hours: float
    gpu_price: float | None
    calls: Calls
    service_price: float | None


class StageFootprint(Frozen):
    gpu: str
    gpu_bytes: float
    trainer: str
    layout: LayoutSettings
    ranks: Ranks
    micro_batch_tokens: int
    training: TrainingMemory
    engine: EngineFootprint | None  # None for SFT
    phases: tuple[PhaseFootprint, ...]  # empty without `compute.load`
    run: RunFootprint | None  # None where steps or load aren't said
    printed: PrintedPace | None  # None where no wall clock is printed


def architecture_of(base: BaseModelSettings) -> ArchitectureSettings | None:
    """Read from the base's directory where that is here, else as the recipe says.

    Raises:
        ConfigError: its `config.json` can't be read, or lacks what every decoder has.
    """
    file = Path(base.path or "", "config.json")
    if base.path is None or not file.is_file():
        return base.architecture
    try:
        return read_architecture(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"no decoder's configuration: {error!r}", where=str(file)) from None


def layout_place(name: str, compute: ComputeSettings) -> str:
    """Where the layout of a stage stands in the recipe."""
    return f"stages.{name}.compute.layout" if compute.layout else "execution.layout"


def stage_footprint(recipe: Recipe, name: str) -> StageFootprint | None:
    """None where the stage has no GPUs, or nothing says what is trained.

    Raises:
        ConfigError: the trainer can't train this policy, or its layout can't be cut, or needs
            more memory than a GPU has.
    """
    stage = recipe.stages[name]
    compute = stage.compute
    if not compute.gpus_per_node or (arch := architecture_of(recipe.base)) is None:
        return None
    gpu, gpus = GPUS[compute.gpu], compute.nodes * compute.gpus_per_node
    layout = compute.layout or recipe.execution.layout
    place = layout_place(name, compute)
    if recipe.execution.trainer == "torch":
        refuse_uncut(layout, place)
    else:
        refuse_family(arch)
    ranks = cut(arch, layout, gpus, place)
    tokens = max(layout.micro_batch_tokens, longest_sequence(stage, arch))
    training = training_memory(
        arch,
        layout,
        ranks,
        trainer=recipe.execution.trainer,
        precision=stage.precision.train,
        has_reference=_pays_for_distance(stage),
        tokens=tokens,
    )
    refuse_training(training, gpu, place)
    engine = engine_footprint(stage, name, arch, gpu, training.resident) if isinstance(stage, RLStage) else None
    phases = tuple(phase_footprints(stage, arch, gpu, gpus, layout, engine))
    return StageFootprint(
        gpu=gpu.name,
        gpu_bytes=gpu.memory_bytes,
        trainer=recipe.execution.trainer,
        layout=layout,
        ranks=ranks,
        micro_batch_tokens=tokens,
        training=training,
        engine=engine,
        phases=phases,
        run=_run(recipe, stage, phases),
        printed=_printed(stage, arch),
    )


def _printed(stage: SFTStage | RLStage, arch: ArchitectureSettings) -> PrintedPace | None:
    data = stage.published.get("data")
    rows = data.get("samples") if isinstance(data, dict) else None
    return printed_pace(stage, arch, rows) if isinstance(stage, SFTStage) and rows else None


def _pays_for_distance(stage: SFTStage | RLStage) -> bool:
    """Whether a second policy is held: the one that the stage started from."""
    if isinstance(stage, SFTStage):
        return False
    return bool(stage.algorithm.kl_coef) or any(phase.kl_coef for phase in stage.phases)


def _run(recipe: Recipe, stage: SFTStage | RLStage, phases: tuple[PhaseFootprint, ...]) -> RunFootprint | None:
    load, steps = stage.compute.load, stage.run.steps
    if load is None or steps is None:
        return None
    gpus = (stage.compute.nodes + stage.compute.extra_nodes) * stage.compute.gpus_per_node
    parts = list(_steps_of_phases(phases, steps))
    hours = sum(count * phase.seconds for phase, count in parts) / 3600
    made = calls(load, sum(count * phase.sampled for phase, count in parts))
    return RunFootprint(
        gpu_hours=hours * gpus,
        gpu_price=None if recipe.gpu_hour_price is None else hours * gpus * recipe.gpu_hour_price,
        calls=made,
        service_price=price(made, hours, recipe.prices),
    )


def _steps_of_phases(phases: tuple[PhaseFootprint, ...], steps: int) -> Iterator[tuple[PhaseFootprint, int]]:
    for index, phase in enumerate(phases):
        end = phases[index + 1].from_step if index + 1 < len(phases) else steps + 1
        yield phase, max(min(end, steps + 1) - phase.from_step, 0)
