"""A policy that has learned one problem by heart."""

from __future__ import annotations

import random
from pathlib import Path

from rufus_core.data.generators import arithmetic
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.training.sft import train_sft
from rufus_core.training.torch_trainer import TorchTrainer
from rufus_core.types import Problem
from tests.training import toy

RIGHT, OTHER = (next(p for p in arithmetic.problems(5, 99, {}) if p.ground_truth["answer"] == n) for n in ("3", "7"))
LONG_ENOUGH = "stages.reasoning_rl.rollout.response_budget_tokens=64"


def solver(base: Path, problem: Problem) -> Policy:
    policy = load_policy(base)
    answer = arithmetic.demonstrate(problem, random.Random(0), False)
    messages = [*problem.prompt, *answer]
    rows = policy.chat.example_ids([(messages, (False, True), ())])
    stage = toy.sft_stage(run={"steps": 40})
    train_sft(TorchTrainer(policy, stage.optimizer), rows, stage, 0, toy.Sink(), lambda step: None)
    return policy
