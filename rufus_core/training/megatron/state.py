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

from rufus_core.errors import LineageError
from rufus_core.training.megatron.optimizer import Optimizer

_MODEL, _OPTIMIZER, _GENERATOR = "model", "optimizer", "generator"


def save_sharded(folder: Path, model: Any, optimizer: Optimizer) -> None:
    """Write it; every rank does its part, into a folder that all see.

    An optimizer that has taken no step remembers nothing, and has no part in it.
    """
    weights = model.sharded_state_dict()
    parts = {_MODEL: weights}
    if optimizer.remembers:
        parts[_OPTIMIZER] = optimizer.sharded_state(weights, loading=False)
    for name, part in parts.items():
        if dist.get_rank() == 0:
            (folder / name).mkdir()
        dist.barrier()
        dist_checkpointing.save({name: part}, str(folder / name))
    _generator(folder).write_bytes(save({_GENERATOR: torch.get_rng_state()}))


def load_sharded(folder: Path, model: Any, optimizer: Optimizer) -> None:
    """Go on from it.

    Raises:
        LineageError: it can't be read, or is of another policy.
    """
    optimizer.forget()
    weights = model.sharded_state_dict()
    parts = {_MODEL: weights}
    if (folder / _OPTIMIZER).exists():
        parts[_OPTIMIZER] = optimizer.sharded_state(weights, loading=True)
    try:
        state = {name: dist_checkpointing.load({name: part}, str(folder / name))[name] for name, part in parts.items()}
        generator = load_file(_generator(folder))[_GENERATOR] if _generator(folder).exists() else None
    except (CheckpointingException, SafetensorError, OSError) as error:
        raise LineageError("the tensors of this training state can't be read", where=str(folder)) from error
    with torch.no_grad():  # a distributed optimizer copies into views of weights
        model.load_state_dict(state[_MODEL])
        if _OPTIMIZER in state:
            optimizer.megatron.load_state_dict(state[_OPTIMIZER])
    if generator is not None:
        torch.set_rng_state(generator)


def _generator(folder: Path) -> Path:
    return folder / f"generator-{dist.get_rank()}.safetensors"
