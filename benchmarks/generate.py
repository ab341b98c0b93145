"""The embedded engine against Hugging Face `generate`: one miniature, one set of prompts and limits, one thread.

Both work in batches of 64 and sample at temperature 1. `generate` takes prompts as they come, and one limit for a
batch: the largest in it. What it makes beyond a prompt's own limit is thrown away and not counted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import torch
from transformers import GenerationConfig
from transformers import __version__ as peer_version

from benchmarks.paired import in_turns
from rufus_core.data.catalogue import GENERATORS
from rufus_core.data.tokenizer import count_words
from rufus_core.ports import GenerateRequest, SamplingParams
from rufus_core.rollout.engine import EmbeddedEngine
from rufus_core.rollout.policy import Policy
from rufus_core.settings import PolicyShape
from rufus_core.training.base_policy import make_policy
from rufus_core.types import Problem

SEED = 0
NUM_PROMPTS = 512
BATCH = 64
SHORTEST, LONGEST = 4, 64  # tokens to generate for a prompt


def make_requests(policy: Policy, problems: list[Problem]) -> list[GenerateRequest]:
    """No stop token: random weights would stop anywhere, and every run must make the same number of tokens."""
    rng = random.Random(SEED)
    requests = []
    for index, problem in enumerate(problems):
        sampling = SamplingParams(max_new_tokens=rng.randint(SHORTEST, LONGEST), sampling_seed=index)
        requests.append(GenerateRequest(str(index), policy.chat.prompt_ids(problem.prompt, problem.tools), sampling))
    return requests


def run_ours(policy: Policy, requests: list[GenerateRequest]) -> int:
    """Tokens that were asked for and made."""
    engine = EmbeddedEngine(policy.model, max_batch=BATCH)
    return sum(len(result.output_ids) for result in engine.generate(requests))


@torch.no_grad()
def run_peer(policy: Policy, requests: list[GenerateRequest]) -> int:
    """Tokens that were asked for and made."""
    pad, made = policy.chat.tokenizer.pad_token_id, 0
    for start in range(0, len(requests), BATCH):
        batch = requests[start : start + BATCH]
        width = max(len(request.input_ids) for request in batch)
        ids_BT = torch.full((len(batch), width), pad)
        mask_BT = torch.zeros((len(batch), width), dtype=torch.long)
        for row, request in enumerate(batch):
            ids_BT[row, width - len(request.input_ids) :] = torch.tensor(request.input_ids)
            mask_BT[row, width - len(request.input_ids) :] = 1
        limits = [request.sampling_params.max_new_tokens for request in batch]
        settings = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, max_new_tokens=max(limits), pad_token_id=pad
        )
        output_BT = policy.model.generate(input_ids=ids_BT, attention_mask=mask_BT, generation_config=settings)
        made += sum(min(limit, output_BT.shape[1] - width) for limit in limits)
    return made


def tokens_per_second(
    run: Callable[[Policy, list[GenerateRequest]], int], policy: Policy, requests: list[GenerateRequest]
) -> float:
    started = time.perf_counter()
    made = run(policy, requests)
    seconds = time.perf_counter() - started
    asked = sum(request.sampling_params.max_new_tokens for request in requests)
    assert made == asked, f"{made} tokens were made of {asked}"
    return made / seconds


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    each = -(-NUM_PROMPTS // len(GENERATORS))
    problems = [p for generator in GENERATORS.values() for p in generator.problems(SEED, each, {})]
    random.Random(SEED).shuffle(problems)  # arrival order: long and short prompts mixed
    shape = PolicyShape()
    words = count_words((m.content for problem in problems for m in problem.prompt), shape.num_words)
    policy = make_policy(shape, words, SEED)
    policy.model.eval()
    policy.model.generation_config.eos_token_id = None
    requests = make_requests(policy, problems[:NUM_PROMPTS])
    run_ours(policy, requests[:BATCH])  # warm both up
    run_peer(policy, requests[:BATCH])
    pairs = in_turns(
        lambda: tokens_per_second(run_ours, policy, requests),
        lambda: tokens_per_second(run_peer, policy, requests),
        "tokens/s",
    )
    pairs.tell(
        "generate",
        higher_is_better=True,
        digits=1,
        unit="generated tokens per second",
        peer_name=f"transformers {peer_version} generate",
        prompts=len(requests),
        batch=BATCH,
        threads=1,
    )


if __name__ == "__main__":
    main()
