"""A miniature with experts, and what stands for its trainer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rufus_core.rollout.policy import Policy
from rufus_core.settings import PolicyShape
from rufus_core.training.base_policy import make_policy

CONTEXT = 512
SHAPE = PolicyShape(
    hidden_size=64,
    num_layers=3,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    intermediate_size=64,
    expert_intermediate_size=32,
    num_experts=4,
    experts_per_token=2,
    context_tokens=CONTEXT,
)


@dataclass
class Trained:
    """The weights of a policy, as an engine takes them over."""

    policy: Policy

    def hf_model(self) -> PreTrainedModel:
        return self.policy.model

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.policy.model.state_dict().items())

    def save_policy(self, folder: Path) -> None:
        self.policy.save(folder)


def miniature() -> Policy:
    policy = make_policy(SHAPE, ("add", "blue", "green", "is", "red", "the", "world"), seed=7)
    policy.model.eval()
    with torch.no_grad():  # random weights are nearly indifferent; sharper logits make a wrong one tell
        policy.model.lm_head.weight.mul_(8)
    return policy


def moved(policy: Policy, seed: int) -> Policy:
    """As after a step of training: every weight is another one."""
    other = Policy(copy.deepcopy(policy.model), policy.chat)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.model.parameters():
            weight.mul_(1 + 0.3 * torch.randn(weight.shape, generator=generator))
    return other
