"""Requests and reference passes that the tests of the engine share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from rufus_core.ports.engine import GenerateRequest, SamplingParams

PROMPT = (9, 17, 30, 41, 52)
STOPS = tuple(range(0, 380, 12))  # many, so that random weights stop at many lengths


def request(prompt: Sequence[int] = PROMPT, rid: str = "r", **wanted: Any) -> GenerateRequest:
    """A request; what isn't about reporting is a sampling parameter."""
    reports = {
        k: wanted.pop(k) for k in ("return_routed_experts", "input_logprobs_from", "top_logprobs") if k in wanted
    }
    return GenerateRequest(rid, list(prompt), SamplingParams(**{"max_new_tokens": 16, **wanted}), **reports)


def prompts(lengths: Sequence[int], seed: int = 3, vocabulary: int = 370) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocabulary, size=length).tolist() for length in lengths]


def full_logits(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """[T, V] of one sequence alone, by Hugging Face, without a cache."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float()
    return logits


def full_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], output: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """Of each token of `output`."""
    logits = full_logits(model, [*prompt, *output])[len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(output)[:, None])[:, 0].tolist()
