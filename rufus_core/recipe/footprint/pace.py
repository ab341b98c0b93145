"""What a printed wall clock says of the hardware, set beside what a plan assumes."""

from __future__ import annotations

from rufus_core.recipe.footprint.gpus import GPUS
from rufus_core.recipe.footprint.roofline import forward_flops
from rufus_core.settings import ArchitectureSettings, SFTStage
from rufus_core.types import Frozen


class PrintedPace(Frozen):
    """Of one GPU: tokens/s, FLOP/s of the model (nothing computed again), and their share of the peak (MFU)."""

    tokens: float  # of an epoch
    hours: float
    gpus: int
    tokens_per_second: float
    flops_per_second: float
    mfu: float


def printed_pace(stage: SFTStage, arch: ArchitectureSettings, rows: float) -> PrintedPace | None:
    """From the hours of an epoch over so many rows; None where hours or load aren't said.

    Attention is reckoned at the mean length, so that long rows make the true share somewhat larger.
    """
    compute, hours = stage.compute, stage.compute.wall_clock.get("hours_per_epoch")
    gpus = compute.nodes * compute.gpus_per_node
    if hours is None or compute.load is None or not gpus:
        return None
    length = compute.load.sequence_tokens
    rate = rows * length / (hours * 3600 * gpus)
    flops = 3 * forward_flops(arch, length) * rate
    return PrintedPace(
        tokens=rows * length,
        hours=hours,
        gpus=gpus,
        tokens_per_second=rate,
        flops_per_second=flops,
        mfu=flops / GPUS[compute.gpu].flops[stage.precision.train],
    )
