"""The state of a training that is cut over ranks, as Megatron's distributed checkpoint and each rank's generators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from rufus_core.errors import LineageError
from rufus_core.training.megatron.optimizer import Optimizer

_TENSORS, _GENERATOR = "megatron", "generator"


def save_sharded(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Write it; every rank does its part, into a folder that all see."""
    tensors = folder / _TENSORS
    if dist.get_rank() == 0:
        tensors.mkdir()
    dist.barrier()
    dist_checkpointing.save(_sharded(model, optimizer, loading=False), str(tensors))
    _generator(folder).write_bytes(save({_GENERATOR: torch.get_rng_state()}))


def load_sharded(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Go on from it.

    Raises:
        LineageError: it can't be read, or is of another policy.
    """
    try:
        state = dist_checkpointing.load(_sharded(model, optimizer, loading=True), str(folder / _TENSORS))
        generator = load_file(_generator(folder))[_GENERATOR] if _generator(folder).exists() else None
    except (CheckpointingException, SafetensorError, OSError) as error:
        raise LineageError("the tensors of this training state can't be read", where=str(folder)) from error
    with torch.no_grad():  # a distributed optimizer copies into views of weights
        model.load_state_dict(state["model"])
        optimizer.megatron.load_state_dict(state["optimizer"])
    if generator is not None:
        torch.set_rng_state(generator)


def _sharded(model: Any, optimizer: Optimizer, *, loading: bool) -> dict[str, Any]:
    weights = model.sharded_state_dict()
    return {"model": weights, "optimizer": optimizer.sharded_state(weights, loading)}


def _generator(folder: Path) -> Path:
    return folder / f"generator-{dist.get_rank()}.safetensors"
