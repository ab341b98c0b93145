"""The embedded engine against Hugging Face `generate` on the miniature: requests that come one by one, one thread."""

from __future__ import annotations

import random

import torch

from benchmarks.decoding import requests_for, tell_comparison, tell_costs
from rufus_core.data.catalogue import CLOSED_VOCABULARY
from rufus_core.data.tokenizer import count_words
from rufus_core.rollout.policy import Policy
from rufus_core.settings import PolicyShape
from rufus_core.training.base_policy import make_policy

SEED = 0
NUM_PROMPTS = 512
BATCH = 64
SHORTEST, LONGEST = 4, 64  # tokens to generate for a prompt


def make_policy_and_prompts() -> tuple[Policy, list[list[int]]]:
    """The CPU profile's shape with random weights, and problems of all stages in an arbitrary order."""
    torch.manual_seed(SEED)
    each = -(-NUM_PROMPTS // len(CLOSED_VOCABULARY))
    problems = [p for generator in CLOSED_VOCABULARY.values() for p in generator.problems(SEED, each, {})]
    random.Random(SEED).shuffle(problems)
    shape = PolicyShape()
    words = count_words((m.content for problem in problems for m in problem.prompt), shape.num_words)
    policy = make_policy(shape, words, SEED)
    policy.model.eval()
    policy.model.generation_config.eos_token_id = None
    return policy, [policy.chat.prompt_ids(p.prompt, p.tools) for p in problems[:NUM_PROMPTS]]


def larger(**changes: int) -> Policy:
    policy = make_policy(PolicyShape(**changes), (), SEED)
    policy.model.eval()
    return policy


def main() -> None:
    torch.set_num_threads(1)
    policy, prompts = make_policy_and_prompts()
    rng = random.Random(SEED)
    mixed = requests_for(prompts, [rng.randint(SHORTEST, LONGEST) for _ in prompts])
    equal = requests_for(prompts, [LONGEST] * len(prompts))
    sizes = {"miniature": policy, "4 layers": larger(num_layers=4), "hidden 256": larger(hidden_size=256)}
    models = {name: each.model for name, each in sizes.items()}
    tell_comparison(
        *("generate", policy.model, mixed, equal, BATCH, (5, 3)),
        lambda: tell_costs(models, batches=(1, 4, 16, 64, 256), lengths=(64, 256, 768)),
    )


if __name__ == "__main__":
    main()
