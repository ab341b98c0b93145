"""Tokens and seconds of a step, for each phase of a stage."""

from __future__ import annotations

from collections.abc import Iterator

from rufus_core.recipe.footprint.engines import EngineFootprint
from rufus_core.recipe.footprint.gpus import Gpu
from rufus_core.recipe.footprint.roofline import RolloutTime, forward_seconds, rollout_time, training_passes
from rufus_core.recipe.footprint.services import Calls, calls
from rufus_core.recipe.phases import phases_of
from rufus_core.settings import ArchitectureSettings, LayoutSettings, RLStage, SFTStage
from rufus_core.types import Frozen


class PhaseFootprint(Frozen):
    """A step from `from_step` on. For RL it is a rollout with all optimizer steps on it."""

    from_step: int
    sampled: float  # sequences that are rolled out, before the online filter; 0 for SFT
    trained: int  # sequences
    tokens: float  # that are trained, prompts and observations too
    rollout: RolloutTime | None
    logprob_seconds: float  # before the first optimizer step, and of the reference
    train_seconds: float
    calls: Calls

    @property
    def seconds(self) -> float:
        return (self.rollout.seconds if self.rollout else 0.0) + self.logprob_seconds + self.train_seconds


def phase_footprints(
    stage: SFTStage | RLStage,
    arch: ArchitectureSettings,
    gpu: Gpu,
    gpus: int,
    layout: LayoutSettings,
    engine: EngineFootprint | None,
) -> Iterator[PhaseFootprint]:
    """Nothing where the stage doesn't say what it will see. The first round of sampling is reckoned with, no refill."""
    load = stage.compute.load
    if load is None:
        return
    length, precision = load.sequence_tokens, stage.precision.train
    for phase in phases_of(stage):
        tokens = phase.sequences * length
        once = forward_seconds(arch, length, tokens, gpu, gpus, precision)
        sampled, rollout, passes = 0.0, None, 0
        if isinstance(stage, RLStage) and engine is not None:
            assert phase.samples is not None
            sampled = phase.sequences * (stage.dynamic_sampling.oversample_factor if stage.dynamic_sampling else 1.0)
            passes = 2 if phase.kl_coef else 1
            rollout = rollout_time(
                arch,
                stage.precision,
                load,
                engine.memory,
                gpu=gpu,
                gpus=engine.engines * engine.gpus,
                gpus_of_engine=engine.gpus,
                sequences=sampled,
                samples=phase.samples,
                longest_response=phase.budget_tokens,
            )
        yield PhaseFootprint(
            from_step=phase.from_step,
            sampled=sampled,
            trained=phase.sequences,
            tokens=tokens,
            rollout=rollout,
            logprob_seconds=passes * once,
            train_seconds=training_passes(layout.recompute) * once,
            calls=calls(load, sampled),
        )
