"""Trainings of the toy policy in processes of their own, which are killed where they stand."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rufus_core.errors import Preempted
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.settings import SFTStage
from rufus_core.training.collect import Issued
from rufus_core.training.reporter import Reporter
from rufus_core.training.rl import train_rl
from rufus_core.training.sft import train_sft
from rufus_core.training.state import TrainingState
from rufus_core.training.torch_trainer import TorchTrainer
from rufus_core.types import Episode, Verdict
from tests.training import toy
from tests.warm import started

STEPS = 6
_RUN = {
    "run": {"steps": STEPS, "checkpoint_interval_steps": 3},
    "optimizer": {"lr_peak": 1e-2, "lr_min": 1e-3, "schedule": "cosine", "warmup_steps": 3},
}
_WINDOW = {"low_exclusive": 0.0, "high_exclusive": 1.0, "oversample_factor": 1.5, "max_rounds": 3}
_PHASES = [
    {"from_step": 3, "prompts_per_rollout": 2, "response_budget_tokens": 3, "kl_coef": 0.5},
    {"from_step": 5, "kl_coef": 0.01},
]
PROBLEMS = [toy.problem(f"{one} {two}") for one in toy.NAMES[:3] for two in toy.NAMES]
TRAININGS = {
    "sft": toy.sft_stage(**_RUN),
    "sft with dropout": toy.sft_stage(**_RUN),
    "gspo": toy.rl_stage(**_RUN),
    "grpo with phases and KL": toy.rl_stage(
        **_RUN, phases=_PHASES, algorithm={"name": "grpo", "advantage": "mean_only"}
    ),
    "dynamic sampling with refill": toy.rl_stage(**_RUN, dynamic_sampling=_WINDOW),
    "two optimizer steps with dropout": toy.rl_stage(
        **_RUN, rollout={"opt_steps_per_rollout": 2}, algorithm={"tis": True}
    ),
}
_FILE_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")


class Folder:
    """What a training leaves, over all its lives."""

    def __init__(self, path: Path) -> None:
        self.output, self.state = path / "output", path / "state"
        self.output.mkdir(parents=True)

    def life(self, parent: Path, name: str, **fate: int) -> int | None:
        """Train in a new process until it ends. Returns its exit code, negative for a signal."""
        process = started(_live, self, parent, name, **fate)
        process.join()
        return process.exitcode


def _live(
    folder: Folder, parent: Path, name: str, stop: int = 0, die_at_verdict: int = 0, die_at_file: int = 0
) -> None:
    """Train, or go on. It is told to stop in a step, or killed at one of its verdicts or file operations."""
    if die_at_file:
        sys.addaudithook(partial(_count_file_operation, folder, iter(range(1, die_at_file))))
    stage, told = TRAININGS[name], threading.Event()
    state = TrainingState(folder.state, folder.output, name, STEPS, told)
    state.take_up()
    policy = load_policy(parent)
    _give_dropout(policy, 0.1 if "dropout" in name else 0.0)
    with Reporter(folder.output / "metrics.jsonl", STEPS) as report:
        arguments = _Sink(report, told, stop), lambda step: policy.save(folder.output / f"step-{step}")
        try:
            if isinstance(stage, SFTStage):
                trainer = TorchTrainer(policy, stage.optimizer)
                train_sft(trainer, toy.examples(policy, 20), stage, 0, *arguments, state)
            else:
                gym = _gym(die_at_verdict)
                with (folder.output / "rollouts.jsonl").open("a") as file:
                    pair = toy.torch_pair(policy, stage)
                    train_rl(*pair, PROBLEMS, gym, stage, 0, *arguments, partial(_keep, file), 1, state)
        except Preempted as error:
            sys.exit(error.exit_code)


def _count_file_operation(folder: Folder, lives: Any, event: str, args: Sequence[Any]) -> None:
    if event in _FILE_EVENTS and str(args[0]).startswith(str(folder.output.parent)) and next(lives, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)


def _gym(die_at_verdict: int) -> SingleTurnGym:
    verdicts = iter(range(1, die_at_verdict))

    def verify(episode: Episode) -> Verdict:
        if die_at_verdict and next(verdicts, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return Verdict.binary(episode.final_text in ("red", "blue"))

    return SingleTurnGym(verify)


def _give_dropout(policy: Policy, share: float) -> None:
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = share


def _keep(file: Any, step: int, issued: Sequence[Issued]) -> None:
    for t in (one.trajectory for one in issued):
        file.write(json.dumps([step, t.problem_id, t.sample_index, t.token_ids, t.logprobs, t.weight_version]) + "\n")
    file.flush()


class _Sink:
    def __init__(self, report: Reporter, told: threading.Event, stop: int) -> None:
        self._report, self._told, self._stop = report, told, stop

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._report.log(step, {k: v for k, v in metrics.items() if not k.endswith("seconds")}, timed=False)
        if step == self._stop:
            self._told.set()
