"""A tiny policy that says a colour, and a gym that likes one of them: small enough to learn in seconds."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from rufus_core.data.chat import MaskedIds
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.rollout.following import FollowingEngine
from rufus_core.rollout.policy import Policy
from rufus_core.settings import PolicyShape, RLStage, SFTStage, StageSettings
from rufus_core.training.base_policy import make_policy
from rufus_core.training.diagnostic import Diagnostic
from rufus_core.training.ranks import ALONE, Ranks
from rufus_core.training.rl import longest_trajectory, needs_reference, train_rl
from rufus_core.training.sft import train_sft
from rufus_core.training.torch_trainer import TorchTrainer
from rufus_core.types import Episode, Message, Problem, Trajectory, Verdict

COLOURS = ("red", "blue", "green", "black")
NAMES = ("Ann", "Ben", "Cleo", "Dan")
SHAPE = PolicyShape(
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    intermediate_size=64,
    expert_intermediate_size=16,
    num_experts=4,
    context_tokens=256,
)
# One step gives w - g / (|g| + 1), which shows the gradient.
PLAIN_STEP = {"lr_peak": 1.0, "eps": 1.0, "weight_decay": 0.0, "grad_clip": 1e9}


class Sink:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert step == len(self.rows) + 1
        self.rows.append(dict(metrics))


def toy_policy(seed: int = 0) -> Policy:
    return make_policy(SHAPE, [*COLOURS, *NAMES, "says"], seed)


def problem(name: str) -> Problem:
    return Problem.build("toy", "toy", [Message(role="user", content=f"{name} says")], {})


PROBLEMS = tuple(problem(name) for name in NAMES)


def examples(policy: Policy, count: int, colours: Sequence[str] = COLOURS) -> list[MaskedIds]:
    rng = random.Random(0)
    rows = []
    for _ in range(count):
        answer = Message(role="assistant", reasoning="", content=rng.choice(colours))
        rows.append((problem(rng.choice(NAMES)).prompt[0], answer))
    return policy.chat.example_ids([(row, (False, True), ()) for row in rows])


def sft_stage(**changes: Any) -> SFTStage:
    stage = {
        "kind": "sft",
        "title": "",
        "parent": "base",
        "evaluation": {"targets": []},
        "data": {"sources": {}},
        "optimizer": {"lr_peak": 1e-2},
        "batch": {"global_batch_sequences": 8, "context_tokens": 256},
        "run": {"steps": 2, "select": {"rule": "last"}},
    }
    validated: SFTStage = TypeAdapter(StageSettings).validate_python(_merged(stage, changes))
    return validated


def rl_stage(**changes: Any) -> RLStage:
    stage = {
        "kind": "rl",
        "title": "",
        "parent": "sft",
        "evaluation": {"targets": []},
        "problems": {"sources": {}},
        "optimizer": {"lr_peak": 1e-2, "weight_decay": 0.0},
        "rollout": {"prompts_per_rollout": 4, "samples_per_prompt": 8, "response_budget_tokens": 6},
        "algorithm": {"name": "gspo", "clip_low": 0.2, "clip_high": 0.2},
        "precision": {"train": "fp32", "rollout": "fp32", "router_replay": False},
        "run": {"steps": 1, "select": {"rule": "last"}},
    }
    validated: RLStage = TypeAdapter(StageSettings).validate_python(_merged(stage, changes))
    return validated


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = _merged(merged[key], value) if isinstance(merged.get(key), dict) and value else value
    return merged


def colour_gym(liked: str = "red") -> SingleTurnGym:
    def verify(episode: Episode) -> Verdict:
        return Verdict.binary(episode.final_text == liked)

    return SingleTurnGym(verify)


def speaking_policy() -> Policy:
    """It ends most of its turns, and says each colour about as often."""
    policy = toy_policy()
    stage = sft_stage(run={"steps": 30})
    train_sft(TorchTrainer(policy, stage.optimizer), examples(policy, 64), stage, 0, Sink(), lambda step: None)
    return policy


def torch_pair(
    policy: Policy,
    stage: RLStage,
    ranks: Ranks = ALONE,
    micro_batch_tokens: int = 2048,
    engine: type[FollowingEngine] = FollowingEngine,
) -> tuple[TorchTrainer, FollowingEngine]:
    """A trainer, and an engine that follows it."""
    reference = needs_reference(stage)
    trainer = TorchTrainer(policy, stage.optimizer, ranks, reference=reference, micro_batch_tokens=micro_batch_tokens)
    return trainer, engine(policy.model, context_tokens=longest_trajectory(stage, trainer.context_length))


def run_rl(
    policy: Policy,
    stage: RLStage,
    gym: SingleTurnGym | None = None,
    problems: Sequence[Problem] = PROBLEMS,
    save: Callable[[int], None] = lambda step: None,
    seed: int = 0,
    workers: int = 1,
    diagnostic: Diagnostic | None = None,
    micro_batch_tokens: int = 2048,
    engine: type[FollowingEngine] = FollowingEngine,
) -> tuple[list[dict[str, float]], list[Trajectory]]:
    """Train in place. Returns the metrics of each step and everything that was issued."""
    sink = Sink()
    issued: list[Trajectory] = []
    train_rl(
        *torch_pair(policy, stage, micro_batch_tokens=micro_batch_tokens, engine=engine),
        problems,
        gym or colour_gym(),
        stage,
        seed,
        sink,
        save,
        lambda _, new: issued.extend(one.trajectory for one in new),
        workers,
        diagnostic=diagnostic,
    )
    return sink.rows, issued


def copy_of(policy: Policy) -> Policy:
    return Policy(copy.deepcopy(policy.model), policy.chat)
