"""The state of a module that is trained in one process, as one file of tensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from rufus_core.errors import LineageError

_TENSORS = "state.safetensors"
_GENERATOR, _GPU_GENERATOR = "generator", "gpu_generator"  # torch's own: a policy with dropout draws from them


class ModuleState:
    """Weights of a module, what its optimizer remembers of each (moments, step counts), and torch's generators."""

    sharded = False

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._module, self._remembering = module, optimizer

    def save_state(self, folder: Path) -> None:
        tensors = {_GENERATOR: torch.get_rng_state()}
        if self._on_gpu:
            tensors[_GPU_GENERATOR] = torch.cuda.get_rng_state()
        for name, weight in self._module.named_parameters():
            tensors[f"weight/{name}"] = weight.detach()
            remembered = self._remembering.state.get(weight, {})
            tensors |= {f"optimizer/{key}/{name}": value for key, value in remembered.items()}
        (folder / _TENSORS).write_bytes(save(tensors))  # `save_file` tells a full disk by an error of its own

    def load_state(self, folder: Path) -> None:
        try:
            tensors = load_file(folder / _TENSORS)
        except (OSError, SafetensorError) as error:
            raise LineageError("the tensors of this training state can't be read", where=str(folder)) from error
        weights = dict(self._module.named_parameters())
        with torch.no_grad():
            for key, value in tensors.items():
                self._put_back(weights, key, value)
        torch.set_rng_state(tensors[_GENERATOR])
        if self._on_gpu and _GPU_GENERATOR in tensors:
            torch.cuda.set_rng_state(tensors[_GPU_GENERATOR])

    @property
    def _on_gpu(self) -> bool:
        return next(self._module.parameters()).is_cuda

    def _put_back(self, weights: dict[str, nn.Parameter], key: str, value: Tensor) -> None:
        match key.split("/", 2):
            case ["weight", name]:
                weights[name].copy_(value)
            case ["optimizer", slot, name]:
                self._remembering.state[weights[name]][slot] = value.to(weights[name].device, copy=True)
