"""What the paper's wall clock says of the trainer, beside what is assumed of it."""

from __future__ import annotations

from collections.abc import Mapping

from rufus_core.recipe.footprint.gpus import GPUS
from rufus_core.recipe.footprint.parameters import count_parameters
from rufus_core.recipe.footprint.stage import architecture_of
from rufus_core.recipe.simulation.scenario import BACKWARD, FORWARD, SECONDS_PER_HOUR
from rufus_core.settings import Recipe, SFTStage
from rufus_core.types import Json


def printed_flops_share(recipe: Recipe) -> float | None:
    """The share of BF16's peak that the printed hours of an SFT epoch come to (SFT-11), or None where none are printed.

    Forward and backward over all raw tokens of the mix, without attention's own products and without padding, so that
    what the GPUs really did was more.
    """
    architecture = architecture_of(recipe.base)
    for stage in recipe.stages.values():
        hours = stage.compute.wall_clock.get("hours_per_epoch")
        tokens = _raw_tokens(stage.published)
        if isinstance(stage, SFTStage) and hours and tokens and architecture:
            gpus = stage.compute.nodes * stage.compute.gpus_per_node
            flops = (FORWARD + BACKWARD) * count_parameters(architecture).active * tokens
            return flops / (gpus * GPUS[stage.compute.gpu].flops["bf16"] * hours * SECONDS_PER_HOUR)
    return None


def _raw_tokens(published: Mapping[str, Json]) -> float | None:
    tokens = published.get("data", {}).get("totals", {}).get("raw_tokens")
    return float(tokens) if tokens else None
