"""The embedded engine against plain forward passes over the whole sequence, without batches and without a cache."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from rufus_core.errors import EngineError
from rufus_core.rollout.engine import EmbeddedEngine
from rufus_core.rollout.policy import Policy
from tests.rollout.requests import PROMPT, STOPS, full_logits, full_logprobs, prompts, request


@pytest.fixture(scope="module")
def engine(tiny_policy: Policy) -> EmbeddedEngine:
    return EmbeddedEngine(tiny_policy.model)


# -- the same model ---------------------------------------------------------------------------------------------------


def test_greedy_ids_equal_a_loop_without_cache(engine: EmbeddedEngine, tiny_policy: Policy) -> None:
    batch = prompts([1, 4, 9, 9, 30])
    results = engine.generate([request(p, temperature=0.0, max_new_tokens=12) for p in batch])
    for prompt, result in zip(batch, results, strict=True):
        ids = list(prompt)
        for _ in range(12):
            ids.append(int(full_logits(tiny_policy.model, ids)[-1].argmax()))
        assert result.output_ids == ids[len(prompt) :]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_are_those_of_a_full_forward_at_the_sampling_temperature(
    engine: EmbeddedEngine, tiny_policy: Policy, temperature: float
) -> None:
    batch = prompts([2, 7, 7, 25, 40])
    params = {"temperature": temperature, "stop_token_ids": STOPS, "max_new_tokens": 30}
    results = engine.generate([request(p, sampling_seed=i, **params) for i, p in enumerate(batch)])
    assert len({len(r.output_ids) for r in results}) > 2  # rows end at different times
    for prompt, result in zip(batch, results, strict=True):
        expected = full_logprobs(tiny_policy.model, prompt, result.output_ids, temperature)
        assert result.output_logprobs == pytest.approx(expected, abs=1e-5)


def test_greedy_logprobs_are_those_of_temperature_one(engine: EmbeddedEngine, tiny_policy: Policy) -> None:
    [result] = engine.generate([request(temperature=0.0)])
    assert result.output_logprobs == pytest.approx(
        full_logprobs(tiny_policy.model, PROMPT, result.output_ids, 1.0), abs=1e-5
    )


def test_top_p_and_top_k_leave_reported_logprobs_alone(engine: EmbeddedEngine, tiny_policy: Policy) -> None:
    [result] = engine.generate([request(top_p=0.5, top_k=4)])
    assert result.output_logprobs == pytest.approx(
        full_logprobs(tiny_policy.model, PROMPT, result.output_ids, 1.0), abs=1e-5
    )


def test_loaded_weights_and_their_version_are_used(tiny_policy: Policy) -> None:
    model = copy.deepcopy(tiny_policy.model)
    engine = EmbeddedEngine(model)
    [before] = engine.generate([request(temperature=0.0)])
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    [same] = engine.generate([request(temperature=0.0)])
    engine.load_weights(model, "1")
    [after] = engine.generate([request(temperature=0.0)])
    assert same == replace(before, cached_tokens=same.cached_tokens)
    assert before.output_ids != after.output_ids
    assert (before.weight_version, after.weight_version) == ("0", "1")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(tiny_policy: Policy, value: float, temperature: float) -> None:
    model = copy.deepcopy(tiny_policy.model)
    with torch.no_grad():
        model.lm_head.weight[5] = value
    with pytest.raises(EngineError, match="logits aren't finite"):
        EmbeddedEngine(model).generate([request(temperature=temperature)])


@pytest.mark.parametrize("temperature", [-1.0, 1e-46, 1e-7, float("inf"), float("nan")])
def test_a_temperature_that_logits_cannot_be_divided_by_is_refused(engine: EmbeddedEngine, temperature: float) -> None:
    with pytest.raises(EngineError, match="temperature must be 0 or a number from 1e-06 on"):
        engine.generate([request(temperature=temperature)])


def test_more_than_all_tokens_are_all(engine: EmbeddedEngine) -> None:
    limited, free = engine.generate([request(top_k=2**70), request()])
    assert (limited.output_ids, limited.output_logprobs) == (free.output_ids, free.output_logprobs)


def test_no_requests_no_results(engine: EmbeddedEngine) -> None:
    assert engine.generate([]) == []


# -- limits -----------------------------------------------------------------------------------------------------------


def test_the_stop_token_is_included_and_nothing_after_it(engine: EmbeddedEngine) -> None:
    [free] = engine.generate([request()])
    stop = free.output_ids[5]
    first = free.output_ids.index(stop)
    [result] = engine.generate([request(stop_token_ids=(stop,))])
    assert result.output_ids == free.output_ids[: first + 1]
    assert result.finish_reason == "stop"
    [last] = engine.generate([request(stop_token_ids=(stop,), max_new_tokens=first + 1)])
    assert (last.output_ids, last.finish_reason) == (result.output_ids, "stop")  # stops on its last permitted token
    [cut] = engine.generate([request(stop_token_ids=(stop,), max_new_tokens=first)])
    assert (cut.output_ids, cut.finish_reason) == (result.output_ids[:-1], "length")


def test_generation_ends_at_its_limit_and_at_the_context(engine: EmbeddedEngine) -> None:
    near = prompts([engine.context_length - 3])[0]
    [short, full] = engine.generate([request(max_new_tokens=4), request(near, max_new_tokens=10)])
    assert (len(short.output_ids), short.finish_reason) == (4, "length")
    assert (len(full.output_ids), full.finish_reason) == (3, "length")
    assert len(full.output_logprobs) == 3


@pytest.mark.parametrize("length", [0, 128, 129])
def test_a_prompt_that_cannot_be_continued_is_refused(engine: EmbeddedEngine, length: int) -> None:
    assert engine.context_length == 128
    with pytest.raises(EngineError, match=f"request bad: a prompt of {length} tokens"):
        engine.generate([request(), request([1] * length, rid="bad")])


# -- sampling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.3, 1.0, -1), (0.6, 1.0, -1), (1.0, 0.8, -1), (1.0, 1.0, 40), (1.5, 0.7, 60)]
)
def test_draws_follow_the_distribution(
    engine: EmbeddedEngine, tiny_policy: Policy, temperature: float, top_p: float, top_k: int
) -> None:
    """Chi-square over 10,000 draws of one token; tokens are pooled into bins that expect at least 20 draws each."""
    num_draws = 10_000
    params = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "max_new_tokens": 1}
    results = engine.generate([request(sampling_seed=s, **params) for s in range(num_draws)])
    probs = (full_logits(tiny_policy.model, PROMPT)[-1] / temperature).softmax(-1).double().numpy()
    order = np.argsort(-probs, kind="stable")
    nucleus = order[: int((np.cumsum(probs[order]) < top_p).sum()) + 1]
    allowed = nucleus[:top_k] if top_k > 0 else nucleus
    probs = np.where(np.isin(np.arange(len(probs)), allowed), probs, 0.0)
    probs /= probs.sum()
    counts = np.bincount([r.output_ids[0] for r in results], minlength=len(probs))
    assert not counts[probs == 0].any()
    observed, expected, pooled = [], [], np.zeros(2)
    for token in order[: len(allowed)]:
        pooled += counts[token], probs[token] * num_draws
        if pooled[1] >= 20:
            observed.append(pooled[0])
            expected.append(pooled[1])
            pooled = np.zeros(2)
    observed[-1] += pooled[0]
    expected[-1] += pooled[1]
    assert len(observed) > 10
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_steps_are_drawn_independently(engine: EmbeddedEngine, tiny_policy: Policy) -> None:
    """With top-k 2 the first two tokens have four outcomes, whose probabilities are products."""
    num_draws = 3000
    results = engine.generate([request(sampling_seed=s, top_k=2, max_new_tokens=2) for s in range(num_draws)])
    counts = Counter(tuple(r.output_ids) for r in results)
    expected = {}
    first = full_logits(tiny_policy.model, PROMPT)[-1].double().softmax(-1).topk(2)
    for token, share in zip(first.indices.tolist(), (first.values / first.values.sum()).tolist(), strict=True):
        second = full_logits(tiny_policy.model, [*PROMPT, token])[-1].double().softmax(-1).topk(2)
        for after, part in zip(second.indices.tolist(), (second.values / second.values.sum()).tolist(), strict=True):
            expected[token, after] = num_draws * share * part
    assert set(counts) <= set(expected)
    assert stats.chisquare([counts[key] for key in expected], list(expected.values())).pvalue > 1e-3


@pytest.mark.parametrize("top_p", [0.2, 0.6, 0.9])
def test_top_p_keeps_the_smallest_nucleus_and_all_of_it(
    engine: EmbeddedEngine, tiny_policy: Policy, top_p: float
) -> None:
    probs = full_logits(tiny_policy.model, PROMPT)[-1].double().softmax(-1).sort(descending=True)
    size = int((probs.values.cumsum(0) < top_p).sum()) + 1
    nucleus = probs.indices[:size].tolist()
    results = engine.generate([request(sampling_seed=s, top_p=top_p, max_new_tokens=1) for s in range(1500)])
    drawn = {r.output_ids[0] for r in results}
    assert drawn <= set(nucleus)
    likely = [t for t, p in zip(nucleus, probs.values.tolist(), strict=False) if p * 1500 > 15]
    assert set(likely) <= drawn


def test_greedy_limits_agree(engine: EmbeddedEngine) -> None:
    """Temperature 0, top-k 1 and a vanishing top-p are three names of the most likely token."""
    results = engine.generate(
        [
            request(temperature=0.0, sampling_seed=1),
            request(temperature=0.0, sampling_seed=2),
            request(top_k=1, sampling_seed=3),
            request(top_p=1e-9, sampling_seed=4),
        ]
    )
    assert len({tuple(r.output_ids) for r in results}) == 1
