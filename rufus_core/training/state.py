"""The state of a training on disk: all that its next step depends on, so that it goes on bit for bit after its death.

What the parent's weights, the data, the settings and the seed give anew is not in it: a reference policy, the order of
an epoch, the seeds of a step's rollouts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from rufus_core.errors import LineageError, Preempted
from rufus_core.lineage.files import entries, sync, sync_tree
from rufus_core.lineage.record import dump_sealed, seal_of
from rufus_core.types import content_id

_FORMAT = 2
_FACTS, _TENSORS = "state.json", "state.safetensors"
_STATE = re.compile(r"step-\d+")
_GENERATOR = "generator"  # torch's own: a policy with dropout draws from it
_SHARE_OF_TIME = 0.02  # what saving may cost


@dataclass(frozen=True, slots=True)
class Position:
    """How far a training is: steps that are whole, items taken of its endless data, optimizer steps that were due."""

    step: int = 0
    taken: int = 0
    updates: int = 0


class Unkept:
    """A training that starts at its beginning and leaves no state."""

    def begin(self, _model: nn.Module, _optimizer: torch.optim.Optimizer, /) -> Position:
        """Put model and optimizer where the training goes on. Returns how far it is."""
        return Position()

    def end_step(self, position: Position, candidate: bool = False) -> None:
        """A step is whole, and what it says is written. `candidate`: a checkpoint was written too.

        Raises:
            Preempted: the training was told to stop, and its state is saved.
        """


UNKEPT = Unkept()


class TrainingState(Unkept):
    """The state in `folder` of a training that writes its files under `output`.

    It is saved after every step as long as that costs at most 2% of the time, else less often; at every candidate; and
    when `stop` is set. After the last of `total` steps it is not: what follows is publishing.

    Files of `output` may be added and may grow; none is written again. A state holds their sizes, and going on from it
    cuts them back to those. `identity` names the parent, data, settings and seed that a state is good for.
    """

    def __init__(self, folder: Path, output: Path, identity: str, total: int, stop: threading.Event) -> None:
        self._folder, self._output, self._identity = folder, output, identity
        self._total, self._stop = total, stop
        self._position, self._tensors = Position(), dict[str, Tensor]()
        self._cost, self._saved_at = 0.0, 0.0

    @property
    def position(self) -> Position:
        """Where the training goes on."""
        return self._position

    def take_up(self) -> None:
        """Read the newest state and put `output` back to its step; without a state, empty both folders.

        Raises:
            LineageError: the state can't be gone on from; nothing was touched.
        """
        states = sorted((path for path in entries(self._folder) if _STATE.fullmatch(path.name)), key=_step_of)
        if not states:
            self.discard()
            return
        facts = _facts(states[-1], self._identity)
        tensors = _tensors(states[-1], facts["sha256"])
        _cut_back(self._output, facts["output"], states[-1])
        self._position, self._tensors = Position(**facts["position"]), tensors

    def discard(self) -> None:
        """Start anew: empty both folders."""
        for folder in (self._folder, self._output):
            for path in entries(folder):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def begin(self, model: nn.Module, optimizer: torch.optim.Optimizer, /) -> Position:
        self._model, self._optimizer = model, optimizer
        if self._tensors:
            _restore(self._tensors, model, optimizer)
            self._tensors = {}
        return self._position

    def end_step(self, position: Position, candidate: bool = False) -> None:
        if position.step == self._total:
            return
        stopping = self._stop.is_set()
        started = time.perf_counter()
        if stopping or candidate or (started - self._saved_at) * _SHARE_OF_TIME >= self._cost:
            self._save(position)
            self._saved_at = time.perf_counter()
            self._cost = self._saved_at - started
        if stopping:
            raise Preempted(f"stopped after step {position.step} of {self._total}", hint="the next run goes on there")

    def _save(self, position: Position) -> None:
        """Whole or not at all: the older state stays until this one is in place."""
        sync_tree(self._output)
        new = self._folder / f"step-{position.step}"
        partial = self._folder / f".{new.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        tensors = save(_everything(self._model, self._optimizer))
        (partial / _TENSORS).write_bytes(tensors)
        facts = {
            "format": _FORMAT,
            "identity": self._identity,
            "position": asdict(position),
            "output": _sizes(self._output),
            "sha256": hashlib.sha256(tensors).hexdigest(),
        }
        (partial / _FACTS).write_text(dump_sealed(facts), encoding="utf-8")
        sync_tree(partial)
        partial.rename(new)
        sync(self._folder)
        for other in entries(self._folder):
            if other != new:
                shutil.rmtree(other)


class FollowedState(Unkept):
    """In the other ranks of a data-parallel training: begins where rank 0 goes on, at `step`, and leaves no state.

    What torch's generator gives depends on identity, step and rank alone, so that nothing of it need be kept.

    Raises:
        LineageError: the state can't be read.
    """

    def __init__(self, folder: Path, identity: str, step: int, rank: int) -> None:
        self._identity, self._rank = identity, rank
        self._position, self._tensors = Position(), dict[str, Tensor]()
        if step:
            facts = _facts(folder / f"step-{step}", identity)
            self._tensors = _tensors(folder / f"step-{step}", facts["sha256"])
            self._position = Position(**facts["position"])

    def begin(self, model: nn.Module, optimizer: torch.optim.Optimizer, /) -> Position:
        if self._tensors:
            _restore(self._tensors, model, optimizer)
            self._tensors = {}
        self._draw_anew(self._position)
        return self._position

    def end_step(self, position: Position, candidate: bool = False) -> None:  # noqa: ARG002
        self._draw_anew(position)

    def _draw_anew(self, position: Position) -> None:
        torch.manual_seed(int(content_id(self._identity, position.step, self._rank)[:15], 16))


def _step_of(state: Path) -> int:
    return int(state.name.removeprefix("step-"))


def _facts(state: Path, identity: str) -> dict[str, Any]:
    try:
        facts = dict(json.loads((state / _FACTS).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise LineageError("this training state can't be read", where=str(state)) from error
    if facts.get("format") != _FORMAT:
        raise LineageError(
            f"this training state has format {facts.get('format')!r}, and not {_FORMAT}", where=str(state)
        )
    if facts.pop("seal", None) != seal_of(facts):
        raise LineageError("this training state was altered after it was written", where=str(state))
    if facts["identity"] != identity:
        raise LineageError("this training state is of other settings, data or parent", where=str(state))
    return facts


def _tensors(state: Path, sha256: str) -> dict[str, Tensor]:
    try:
        content = (state / _TENSORS).read_bytes()
        if hashlib.sha256(content).hexdigest() == sha256:
            return dict(load(content))
    except (OSError, SafetensorError) as error:
        raise LineageError("the tensors of this training state can't be read", where=str(state)) from error
    raise LineageError("the tensors of this training state were altered after they were written", where=str(state))


def _everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights, what the optimizer remembers of each (moments, step counts), and torch's generator."""
    tensors = {_GENERATOR: torch.get_rng_state()}
    for name, weight in model.named_parameters():
        tensors[f"weight/{name}"] = weight.detach()
        tensors |= {f"optimizer/{key}/{name}": value for key, value in optimizer.state.get(weight, {}).items()}
    return tensors


def _restore(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for key, value in tensors.items():
            match key.split("/", 2):
                case ["weight", name]:
                    weights[name].copy_(value)
                case ["optimizer", slot, name]:
                    optimizer.state[weights[name]][slot] = value.clone()
    torch.set_rng_state(tensors[_GENERATOR])


def _sizes(output: Path) -> dict[str, int]:
    """Size in bytes of each file, by its path inside `output`."""
    return {str(p.relative_to(output)): p.stat().st_size for p in sorted(output.rglob("*")) if p.is_file()}


def _cut_back(output: Path, sizes: dict[str, int], state: Path) -> None:
    """Make `output` what it was when these sizes were noted.

    Raises:
        LineageError: a file is missing or shorter than it was.
    """
    found = _sizes(output)
    for name, size in sizes.items():
        if found.get(name, -1) < size:
            told = "is shorter than this training state says" if name in found else "is gone"
            raise LineageError(f"{name} {told}", where=str(state))
    for path in sorted(output.rglob("*"), reverse=True):  # what a folder holds comes before it
        name = str(path.relative_to(output))
        if name in sizes:
            os.truncate(path, sizes[name])
        elif path.is_file():
            path.unlink()
        elif not any(path.iterdir()):
            path.rmdir()
