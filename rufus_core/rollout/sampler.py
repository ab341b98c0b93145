"""Draws tokens by inverse transform from numbers that each request's seed fixes.

Shapes: B sequences, V vocabulary, C blocks of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from rufus_core.errors import EngineError
from rufus_core.ports.engine import SamplingParams

_SMALL = 4096  # tokens of a vocabulary that is summed in one go
_BLOCK = 256  # tokens whose probabilities are summed before the sums are, so that no long running sum is needed


def uniform_numbers(params: SamplingParams, count: int) -> list[float]:
    """A request's numbers in [0, 1), one for each token it may draw."""
    generator = torch.Generator().manual_seed(params.sampling_seed)
    return torch.rand(count, generator=generator, dtype=torch.float64).tolist()


def sample(logits_BV: Tensor, params: Sequence[SamplingParams], uniform: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Tokens [B], and the probabilities [B, V] of all.

    Probabilities are those at the sampling temperature, before top-p and top-k, as in SGLang; at temperature 0 the most
    likely token is taken and probabilities are those of temperature 1.

    Raises:
        EngineError: logits aren't finite.
    """
    temperatures = [p.temperature or 1.0 for p in params]
    if temperatures.count(1.0) < len(temperatures):
        logits_BV = logits_BV / torch.tensor(temperatures)[:, None]
    probs_BV = drawn_from_BV = torch.softmax(logits_BV, dim=-1)
    if probs_BV[:, 0].isnan().any():  # one infinity or NaN makes all of a row NaN
        raise EngineError("the model's logits aren't finite", hint="its weights are damaged, or training has diverged")
    if any(p.top_p < 1 or p.top_k > 0 for p in params):
        drawn_from_BV = _truncated(probs_BV, params)
    tokens_B = _draw(drawn_from_BV, torch.tensor(uniform, dtype=torch.float64))
    greedy = [p.temperature == 0 for p in params]
    if any(greedy):
        tokens_B = torch.where(torch.tensor(greedy), logits_BV.argmax(-1), tokens_B)
    return tokens_B, probs_BV


def _draw(probs_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The first token at which the running sum of probabilities passes uniform * total.

    In a large vocabulary the block that holds it is found first.
    """
    vocabulary = probs_BV.shape[1]
    if vocabulary <= _SMALL:
        sums_BV = probs_BV.cumsum(-1, dtype=torch.float64)
        return torch.searchsorted(sums_BV, (uniform_B * sums_BV[:, -1])[:, None], right=True)[:, 0]
    blocks_BCK = pad(probs_BV, (0, -vocabulary % _BLOCK)).view(len(probs_BV), -1, _BLOCK)
    ends_BC = blocks_BCK.sum(-1, dtype=torch.float64).cumsum(-1)
    threshold_B1 = (uniform_B * ends_BC[:, -1])[:, None]
    block_B = torch.searchsorted(ends_BC, threshold_B1, right=True)[:, 0].clamp(max=ends_BC.shape[1] - 1)
    rows_B = torch.arange(len(probs_BV))
    start_B = torch.where(block_B > 0, ends_BC[rows_B, block_B - 1], 0.0)
    inside_BK = blocks_BCK[rows_B, block_B].double().cumsum(-1)
    # The block's own running sum may end a rounding below the threshold: then its last likely token is meant.
    last_B1 = inside_BK[:, -1:].contiguous()
    place_B = torch.searchsorted(inside_BK, threshold_B1 - start_B[:, None], right=True)[:, 0]
    last_likely_B = torch.searchsorted(inside_BK, last_B1)[:, 0]
    return block_B * _BLOCK + torch.minimum(place_B, last_likely_B)


def _truncated(probs_BV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Zero outside of top-p (the smallest set of most likely tokens with that mass) and of top-k; not normalised."""
    vocabulary = probs_BV.shape[1]
    top_p_B = torch.tensor([p.top_p for p in params], dtype=torch.float64)
    top_k_B = torch.tensor([min(p.top_k, vocabulary) if p.top_k > 0 else vocabulary for p in params])
    sorted_BV, order_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
    before_BV = sorted_BV.double().cumsum(-1) - sorted_BV  # mass of everything more likely
    keep_BV = (before_BV < top_p_B[:, None]) & (torch.arange(vocabulary) < top_k_B[:, None])
    return torch.zeros_like(probs_BV).scatter(-1, order_BV, sorted_BV * keep_BV)
