"""The state of a training on disk: all that its next step depends on, so that it goes on bit for bit after its death.

What the parent's weights, the data, the settings and the seed give anew is not in it: a reference policy, the order of
an epoch, the seeds of a step's rollouts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from rufus_core.errors import LineageError, Preempted
from rufus_core.lineage.digest import hash_file
from rufus_core.lineage.files import entries, sync, sync_tree
from rufus_core.lineage.record import dump_sealed, seal_of
from rufus_core.training.ranks import ALONE, Ranks
from rufus_core.types import content_id

_FORMAT = 3
_FACTS = "state.json"
_STATE = re.compile(r"step-\d+")
_SHARE_OF_TIME = 0.02  # what saving may cost


@dataclass(frozen=True, slots=True)
class Position:
    """How far a training is: steps that are whole, items taken of its endless data, optimizer steps that were due."""

    step: int = 0
    taken: int = 0
    updates: int = 0


class Restorable(Protocol):
    """What a training changes, as files: weights, what the optimizer remembers of each, torch's generator."""

    @property
    def sharded(self) -> bool:
        """Whether every rank writes a part of the files, or rank 0 all of them."""
        ...

    def save_state(self, folder: Path) -> None:
        """Write it into an empty folder. Raises InfrastructureError where it can't be written."""
        ...

    def load_state(self, folder: Path) -> None:
        """Put it back, bit for bit. Raises LineageError where the files can't be read."""
        ...


class Unkept:
    """A training that starts at its beginning and leaves no state."""

    def begin(self, _training: Restorable, /) -> Position:
        """Put the training where it goes on. Returns how far it is."""
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

    def __init__(
        self,
        folder: Path,
        output: Path,
        identity: str,
        total: int,
        stop: threading.Event,
        ranks: Ranks = ALONE,
    ) -> None:
        self._folder, self._output, self._identity = folder, output, identity
        self._total, self._stop, self._ranks = total, stop, ranks
        self._position = Position()
        self._found: Path | None = None
        self._cost, self._saved_at = 0.0, 0.0

    @property
    def position(self) -> Position:
        """Where the training goes on."""
        return self._position

    def take_up(self) -> None:
        """Find the newest state and put `output` back to its step; without a state, empty both folders.

        Raises:
            LineageError: the state can't be gone on from; nothing was touched.
        """
        states = sorted((path for path in entries(self._folder) if _STATE.fullmatch(path.name)), key=_step_of)
        if not states:
            self.discard()
            return
        facts = _facts(states[-1], self._identity)
        _verify(states[-1], facts["files"])
        _cut_back(self._output, facts["output"], states[-1])
        self._position, self._found = Position(**facts["position"]), states[-1]

    def discard(self) -> None:
        """Start anew: empty both folders."""
        for folder in (self._folder, self._output):
            for path in entries(folder):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def begin(self, training: Restorable, /) -> Position:
        self._training = training
        if self._found is not None:
            training.load_state(self._found)
        return self._position

    def end_step(self, position: Position, candidate: bool = False) -> None:
        if position.step == self._total:
            return
        stopping = self._stop.is_set()
        started = time.perf_counter()
        wanted = stopping or candidate or (started - self._saved_at) * _SHARE_OF_TIME >= self._cost
        if wanted:
            self._save(position)
            self._saved_at = time.perf_counter()
            self._cost = self._saved_at - started
        elif self._training.sharded:
            self._ranks.concat([""])
        if stopping:
            raise Preempted(f"stopped after step {position.step} of {self._total}", hint="the next run goes on there")

    def _save(self, position: Position) -> None:
        """Whole or not at all: the older state stays until this one is in place."""
        sync_tree(self._output)
        new = self._folder / f"step-{position.step}"
        partial = self._folder / f".{new.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if self._training.sharded:
            self._ranks.concat([partial.name])
        self._training.save_state(partial)
        if self._training.sharded:
            self._ranks.concat(list[str]())  # all parts are there
        facts = {
            "format": _FORMAT,
            "identity": self._identity,
            "position": asdict(position),
            "output": _sizes(self._output),
            "files": _files(partial),
        }
        (partial / _FACTS).write_text(dump_sealed(facts), encoding="utf-8")
        sync_tree(partial)
        partial.rename(new)
        sync(self._folder)
        for other in entries(self._folder):
            if other != new:
                shutil.rmtree(other)


class FollowedState(Unkept):
    """In the ranks beside rank 0: begins where that goes on, at `step`, and writes this rank's part where there is one.

    What torch's generator gives depends on identity, step and rank alone, so that nothing of it need be kept.

    Raises:
        LineageError: the state can't be read.
    """

    def __init__(self, folder: Path, identity: str, step: int, total: int, ranks: Ranks) -> None:
        self._folder, self._identity, self._total, self._ranks = folder, identity, total, ranks
        self._position = Position()
        self._found: Path | None = None
        if step:
            self._found = folder / f"step-{step}"
            self._position = Position(**_facts(self._found, identity)["position"])

    def begin(self, training: Restorable, /) -> Position:
        self._training = training
        if self._found is not None:
            training.load_state(self._found)
        self._draw_anew(self._position)
        return self._position

    def end_step(self, position: Position, candidate: bool = False) -> None:  # noqa: ARG002
        if self._training.sharded and position.step != self._total:
            (partial,) = self._ranks.concat(list[str]())
            if partial:
                self._training.save_state(self._folder / partial)
                self._ranks.concat(list[str]())
        self._draw_anew(position)

    def _draw_anew(self, position: Position) -> None:
        torch.manual_seed(int(content_id(self._identity, position.step, self._ranks.rank)[:15], 16))


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


def _files(state: Path) -> dict[str, str]:
    """SHA-256 of each file of a state but for its facts, by its path inside it."""
    files = (p for p in sorted(state.rglob("*")) if p.is_file() and p.name != _FACTS)
    return {str(p.relative_to(state)): hash_file(p).sha256 for p in files}


def _verify(state: Path, recorded: dict[str, str]) -> None:
    found = _files(state)
    if recorded.keys() - found.keys():
        raise LineageError("the tensors of this training state can't be read: they are gone", where=str(state))
    if found != recorded:
        raise LineageError("the tensors of this training state were altered after they were written", where=str(state))


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
