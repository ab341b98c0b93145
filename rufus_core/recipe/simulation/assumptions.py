"""What a simulation takes as given, and where it is written: `deployments/assumptions/*.yaml`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rufus_core.recipe.document import merge_at
from rufus_core.recipe.load import find_document, override, read_document
from rufus_core.recipe.simulation.episodes import NONE, ONE, LogNormal
from rufus_core.recipe.validate import validated
from rufus_core.types import Frozen

Amount = Annotated[float, Field(gt=0.0)]
Fraction = Annotated[float, Field(gt=0.0, le=1.0)]


class EngineAssumptions(Frozen):
    """What an engine reaches of its GPUs."""

    bandwidth_share: Fraction
    decode_flops_share: Fraction
    prefill_flops_share: Fraction
    step_overhead_seconds: Annotated[float, Field(ge=0.0)]
    memory_share: Fraction  # for weights and cache
    max_running: Annotated[int, Field(gt=0)]
    reserved_share: Annotated[float, Field(ge=0.0)]
    mean_hours_between_failures: Amount | None = None  # of one engine; None: none fails
    recovery_seconds: Annotated[float, Field(ge=0.0)] = 300.0


class TrainerAssumptions(Frozen):
    flops_share: Fraction
    interconnect_bytes_per_second: Amount  # of a GPU to other nodes
    offload_seconds: Annotated[float, Field(ge=0.0)]


class WorkloadAssumptions(Frozen):
    """What a stage's episodes are like. Without turns, an episode is one response."""

    prompt_tokens: LogNormal
    turn_tokens: LogNormal
    num_turns: LogNormal = ONE
    tool_seconds: LogNormal = NONE
    observation_tokens: LogNormal = NONE
    kept_share: Fraction = 1.0  # of groups, by the online filter


class Assumptions(Frozen):
    engine: EngineAssumptions
    trainer: TrainerAssumptions
    stages: dict[str, WorkloadAssumptions]


def load_assumptions(name: Path | str = "h200", overrides: Sequence[str] = ()) -> Assumptions:
    """A file of `deployments/assumptions` by its name, or any by its path, with `a.b=VALUE` on top.

    Raises:
        ConfigError: the file is missing or no YAML, or a key or value is unknown or wrong.
    """
    tree = read_document(find_document("assumptions", name))
    for argument in overrides:
        keys, value = override(argument, "--assume")
        tree = merge_at(tree, keys, value)
    return validated(tree, Assumptions, "the assumptions")
