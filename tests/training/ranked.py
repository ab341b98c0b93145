"""Trainings of the toy policy in several ranks, each a process of its own."""

from __future__ import annotations

import pickle
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from rufus_core.errors import RufusError
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.jobs.resume import training_state
from rufus_core.ports.ranks import RankPlace
from rufus_core.rollout.policy import load_policy
from rufus_core.settings import RLStage, SFTStage
from rufus_core.training.collect import Issued
from rufus_core.training.ranks import PATIENCE, Ranks, TorchRanks
from rufus_core.training.rl import train_rl
from rufus_core.training.sft import train_sft
from rufus_core.training.torch_trainer import TorchTrainer
from rufus_core.types import Episode, Verdict
from tests.training import toy
from tests.warm import started

Work = Callable[..., Any]


def in_ranks(size: int, folder: Path, work: Work, *args: Any, patience: timedelta = PATIENCE) -> list[Any]:
    """Call `work(ranks, *args)` in `size` processes. What each returned, the RufusError it raised, or its exit code."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    processes = []
    for rank in range(size):
        place = RankPlace(rank, size, host, port, listener if rank == 0 else None)
        processes.append(started(_rank, place, patience, folder / f"{rank}.pickle", work, args))
    listener.close()
    for process in processes:
        process.join()
    files = [folder / f"{rank}.pickle" for rank in range(size)]
    return [
        pickle.loads(file.read_bytes()) if process.exitcode == 0 else process.exitcode
        for file, process in zip(files, processes, strict=True)
    ]


def _rank(place: RankPlace, patience: timedelta, file: Path, work: Work, args: tuple[Any, ...]) -> None:
    try:
        result = work(TorchRanks(place, patience), *args)
    except RufusError as error:
        result = error
    file.write_bytes(pickle.dumps(result))
    sys.stdout.flush()


@dataclass
class Trained:
    """What a rank has in the end: metrics of each step, what was issued, weights."""

    rows: list[dict[str, float]] = field(default_factory=list)
    issued: list[tuple[str, list[int], list[float]]] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    saved: list[int] = field(default_factory=list)


class _Sink:
    def __init__(self, rows: list[dict[str, float]], told: threading.Event, stop: int) -> None:
        self._rows, self._told, self._stop = rows, told, stop

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rows.append({k: v for k, v in metrics.items() if not k.endswith("seconds")})
        if step == self._stop:
            self._told.set()


def train(
    ranks: Ranks, parent: Path, stage: RLStage | SFTStage, folder: Path, dropout: float = 0.0, stop: int = 0
) -> Trained:
    """Train the policy at `parent`, or go on from the state in `folder`; rank 0 is told to stop in a step."""
    policy = load_policy(parent)
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = dropout
    done, told = Trained(), threading.Event()
    folder.mkdir(exist_ok=True)
    job: Any = SimpleNamespace(
        state=folder / "state", output=folder / "output", document=SimpleNamespace(fingerprint="toy")
    )
    if ranks.rank == 0:
        job.output.mkdir(exist_ok=True)
    state = training_state(job, stage.run.steps or 0, told, ranks)
    sink = _Sink(done.rows, told, stop)
    if isinstance(stage, SFTStage):
        trainer = TorchTrainer(policy, stage.optimizer, ranks)
        train_sft(trainer, toy.examples(policy, 20), stage, 0, sink, done.saved.append, state)
    else:

        def keep(_step: int, issued: Sequence[Issued]) -> None:
            trajectories = [one.trajectory for one in issued]
            done.issued += [(t.problem_id, t.token_ids, t.logprobs) for t in trajectories]

        pair = toy.torch_pair(policy, stage, ranks)
        train_rl(*pair, toy.PROBLEMS, gym(), stage, 0, sink, done.saved.append, keep, 1, state)
    done.weights = {name: weight.detach() for name, weight in policy.model.named_parameters()}
    return done


def gym() -> SingleTurnGym:
    def verify(episode: Episode) -> Verdict:
        return Verdict.binary(episode.final_text in ("red", "blue"))

    return SingleTurnGym(verify)
