"""What tests of several rooms share. Property tests draw the same examples on every run and know no deadline."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from rufus_core.data.chat import ChatFormat
    from rufus_core.rollout.policy import Policy

settings.register_profile("repository", derandomize=True, deadline=None)
settings.load_profile("repository")

# A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

TINY_WORDS = ("add", "answer", "blue", "find", "green", "hello", "is", "look", "number", "red", "the", "what", "world")


@pytest.fixture(scope="session")
def tiny_policy() -> Policy:
    """Random weights: 2 layers, hidden size 32, a context of 128 tokens. Tests leave it as they found it."""
    import torch

    from rufus_core.settings import PolicyShape
    from rufus_core.training.base_policy import make_policy

    torch.set_num_threads(1)
    shape = PolicyShape(
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=32,
        expert_intermediate_size=16,
        num_experts=4,
        experts_per_token=2,
        context_tokens=128,
    )
    policy = make_policy(shape, TINY_WORDS, seed=7)
    policy.model.eval()
    with torch.no_grad():  # random weights are nearly indifferent; sharper logits make a wrong one tell
        policy.model.lm_head.weight.mul_(8)
    return policy


@pytest.fixture(scope="session")
def chat() -> ChatFormat:
    """The miniature's chat format, without weights."""
    from rufus_core.data.chat import ChatFormat
    from rufus_core.data.tokenizer import build_tokenizer

    return ChatFormat(build_tokenizer(TINY_WORDS, 128))
