"""What a request becomes depends on the request alone: bit for bit, whatever else the engine does."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM

from rufus_core.errors import EngineError
from rufus_core.ports.engine import GenerateRequest, GenerateResult
from rufus_core.rollout.engine import EmbeddedEngine
from rufus_core.rollout.kv_cache import attention_width
from rufus_core.rollout.policy import Policy
from tests.rollout.requests import STOPS, full_logprobs, prompts, request


def sums_depend_on_no_shape() -> bool:
    """Whether this machine's matrix library keeps to what exactness rests on.

    Blocks of four rows are treated alike, by all three ways of a product, and attention alike over the ladder's widths.
    """
    generator = torch.Generator().manual_seed(0)
    rows, weight = torch.randn(64, 256, generator=generator), torch.randn(1024, 256, generator=generator)
    whole = linear(rows, weight)
    alike = all(torch.equal(linear(rows[:n], weight), whole[:n]) for n in range(4, 64, 4))
    alike &= all(torch.equal((weight @ rows[:n].t()).t(), whole[:n]) for n in range(12, 64, 4))
    alike &= all(torch.equal(torch.bmm(rows[None, :n], weight.t()[None])[0], whole[:n]) for n in range(4, 64, 4))
    query, keys, values = (torch.randn(1, 1, n, 16, generator=generator) for n in (4, 1024, 1024))
    for positions in (5, 40, 100, 150, 180, 250, 380, 500):
        widths = sorted({attention_width(n) for n in range(positions, 1024)})
        seen = [
            scaled_dot_product_attention(
                query, keys[:, :, :width], values[:, :, :width], attn_mask=(torch.arange(width) < positions)[None]
            )
            for width in widths
        ]
        alike &= all(torch.equal(one, seen[0]) for one in seen)
    return alike


exactly = pytest.mark.skipif(not sums_depend_on_no_shape(), reason="this matrix library's sums depend on the shape")


def varied(seed: int = 0, count: int = 24) -> list[GenerateRequest]:
    """Different lengths, limits, temperatures and stops; some prompts begin alike, some are equal."""
    rng = np.random.default_rng(seed)
    shared = prompts([40], seed)[0]
    found = []
    for i in range(count):
        own = prompts([int(rng.integers(1, 50))], 100 + i)[0]
        prompt = own if i % 3 == 0 else shared[: int(rng.integers(8, 40))] + own[: i % 7]
        found.append(
            request(
                prompt,
                rid=f"r{i}",
                sampling_seed=100 + i,
                temperature=(0.0, 0.7, 1.0)[i % 3],
                top_p=(1.0, 0.9)[i % 2],
                max_new_tokens=1 + int(rng.integers(0, 40)),
                stop_token_ids=STOPS,
                return_routed_experts=True,
            )
        )
    return found


def told(result: GenerateResult) -> tuple[object, ...]:
    """All of a result but how much of its prompt was at hand."""
    assert result.routed_experts is not None
    return (
        *(getattr(result, k) for k in ("rid", "output_ids", "output_logprobs", "finish_reason")),
        result.routed_experts.tolist(),
    )


def alone(policy: Policy, requests: Sequence[GenerateRequest]) -> list[tuple[object, ...]]:
    return [told(EmbeddedEngine(policy.model).generate([r])[0]) for r in requests]


def stepped(engine: EmbeddedEngine, arrivals: Iterator[Sequence[GenerateRequest]]) -> dict[str, GenerateResult]:
    """Let requests arrive between steps, and step until all are done."""
    results = {}
    more = True
    while more or not engine.idle:
        batch = next(arrivals, None)
        more = batch is not None
        for each in batch or ():
            engine.add(each)
        for progress in engine.step():
            if progress.result is not None:
                results[progress.rid] = progress.result
    return results


@exactly
@pytest.mark.parametrize("max_batch", [1, 3, 8, 256])
def test_results_do_not_depend_on_the_batch_or_on_what_the_cache_holds(tiny_policy: Policy, max_batch: int) -> None:
    requests = varied()
    expected = alone(tiny_policy, requests)
    assert {outcome[3] for outcome in expected} == {"stop", "length"}
    engine = EmbeddedEngine(tiny_policy.model, max_batch)
    first = engine.generate(requests)
    assert [told(r) for r in first] == expected
    again = engine.generate(requests)  # by now nearly every prompt is at hand
    assert [told(r) for r in again] == expected
    if max_batch == 256:
        assert sum(r.cached_tokens for r in again) > sum(r.cached_tokens for r in first) > 0
    backwards = EmbeddedEngine(tiny_policy.model, max_batch).generate(requests[::-1])
    assert [told(r) for r in backwards[::-1]] == expected


@exactly
@given(st.data())
@settings(max_examples=15)
def test_results_do_not_depend_on_the_order_or_time_of_arrival(tiny_policy: Policy, data: st.DataObject) -> None:
    requests = varied(seed=1, count=14)
    expected = dict(zip([r.rid for r in requests], alone_once(tiny_policy), strict=True))
    order = data.draw(st.permutations(requests))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(order)), max_size=6)))
    arrivals = [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    engine = EmbeddedEngine(tiny_policy.model, data.draw(st.sampled_from([2, 5, 16])))
    results = stepped(engine, iter(arrivals))
    assert {rid: told(result) for rid, result in results.items()} == expected


_ALONE: list[tuple[object, ...]] = []


def alone_once(policy: Policy) -> list[tuple[object, ...]]:
    if not _ALONE:
        _ALONE.extend(alone(policy, varied(seed=1, count=14)))
    return _ALONE


@exactly
def test_a_prompt_that_is_computed_in_parts_gives_the_same(
    tiny_policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = varied(seed=2)
    expected = alone(tiny_policy, requests)
    monkeypatch.setattr("rufus_core.rollout.engine._PREFILL_TOKENS", 7)
    assert [told(r) for r in EmbeddedEngine(tiny_policy.model, 16).generate(requests)] == expected


@exactly
def test_results_of_a_wider_model_do_not_depend_on_the_batch() -> None:
    """Its products are large enough to be spread over the threads where there are few rows."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2000, hidden_size=256, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=600, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    lengths = [5, 30, 130, 150, 200, 260, 330, 400, 510, 530, *range(20, 26)]
    requests = [
        request(p, rid=str(i), sampling_seed=i, max_new_tokens=12) for i, p in enumerate(prompts(lengths, 5, 2000))
    ]
    expected = [EmbeddedEngine(model).generate([r])[0] for r in requests]
    for max_batch in (2, 7, 64):
        engine = EmbeddedEngine(model, max_batch)
        assert engine.generate(requests) == expected
        assert [replace(r, cached_tokens=0) for r in engine.generate(requests[::-1])[::-1]] == expected


def test_a_later_turn_computes_only_what_is_new(tiny_policy: Policy) -> None:
    """The next prompt is the earlier ids, the sampled ids, and the observation (GYM-14)."""
    engine = EmbeddedEngine(tiny_policy.model, 8)
    turns = [request(p, rid=str(i), sampling_seed=i, max_new_tokens=12) for i, p in enumerate(prompts([20, 25, 30]))]
    for suffix in (4, 1, 9):
        results = engine.generate(turns)
        longer = [
            [*turn.input_ids, *result.output_ids, *prompts([suffix], i)[0]]
            for i, (turn, result) in enumerate(zip(turns, results, strict=True))
        ]
        turns = [replace(turn, input_ids=ids) for turn, ids in zip(turns, longer, strict=True)]
        found = engine.generate([replace(turn, return_routed_experts=True) for turn in turns])
        assert [r.cached_tokens for r in found] == [len(t.input_ids) - suffix - 1 for t in turns]
        for turn, result in zip(turns, found, strict=True):
            expected = full_logprobs(tiny_policy.model, turn.input_ids, result.output_ids)
            assert result.output_logprobs == pytest.approx(expected, abs=1e-5)
            [anew] = EmbeddedEngine(tiny_policy.model).generate([replace(turn, return_routed_experts=True)])
            assert np.array_equal(anew.routed_experts, result.routed_experts)


def test_samples_of_one_prompt_compute_it_once(tiny_policy: Policy) -> None:
    [prompt] = prompts([50])
    results = EmbeddedEngine(tiny_policy.model, 8).generate([request(prompt, sampling_seed=s) for s in range(6)])
    assert [r.cached_tokens for r in results] == [0] + [49] * 5
    assert len({tuple(r.output_ids) for r in results}) == 6


def test_nothing_is_shared_across_weights(tiny_policy: Policy) -> None:
    [prompt] = prompts([50])
    model = copy.deepcopy(tiny_policy.model)
    engine = EmbeddedEngine(model, 8)
    engine.generate([request(prompt)])
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(-1)
    engine.load_weights(model, "1")
    [result] = engine.generate([request(prompt, temperature=0.0)])
    assert result.cached_tokens == 0
    expected = full_logprobs(model, prompt, result.output_ids)
    assert result.output_logprobs == pytest.approx(expected, abs=1e-5)
    assert engine.flush_cache()
    [anew] = engine.generate([request(prompt, temperature=0.0)])
    assert anew.cached_tokens == 0


def test_what_runs_goes_on_with_new_weights_and_gives_nothing_on(tiny_policy: Policy) -> None:
    [prompt] = prompts([30])
    engine = EmbeddedEngine(tiny_policy.model, 4)
    engine.add(request(prompt, "long", max_new_tokens=20))
    versions = [engine.step() for _ in range(5)][-1][0].weight_version
    other = copy.deepcopy(tiny_policy.model)
    with torch.no_grad():
        other.lm_head.weight.mul_(0.5)
    engine.load_weights(other, "1")
    assert not engine.flush_cache()  # a request is in flight
    engine.add(request(prompt, "late", max_new_tokens=20))
    progress = [p for _ in range(30) for p in engine.step()]
    results = {p.rid: p.result for p in progress if p.result}
    assert versions == "0"
    assert {p.weight_version for p in progress} == {"1"}
    assert results["late"].cached_tokens == 0
    assert results["late"].output_logprobs == pytest.approx(
        full_logprobs(other, prompt, results["late"].output_ids), abs=1e-5
    )


def test_an_aborted_request_keeps_what_it_has(tiny_policy: Policy) -> None:
    engine = EmbeddedEngine(tiny_policy.model, 1)
    ids = prompts([9, 9])
    [whole] = engine.generate([request(ids[0], max_new_tokens=20)])
    engine.add(request(ids[0], "runs", max_new_tokens=20))
    engine.add(request(ids[1], "waits"))
    for _ in range(5):
        engine.step()
    drawn = 5 - (whole.cached_tokens == 0)
    engine.abort("runs")
    engine.abort("waits")
    engine.abort("unknown")
    results = {p.rid: p.result for p in engine.step()}
    assert engine.idle
    runs, waits = results["runs"], results["waits"]
    assert (runs.finish_reason, waits.finish_reason) == ("abort", "abort")
    assert 0 < len(runs.output_ids) <= drawn
    assert runs.output_ids == whole.output_ids[: len(runs.output_ids)]
    assert runs.output_logprobs == whole.output_logprobs[: len(runs.output_ids)]
    assert (waits.output_ids, waits.output_logprobs) == ([], [])


def test_a_request_may_be_aborted_after_the_cache_has_grown() -> None:
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=600, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    engine = EmbeddedEngine(LlamaForCausalLM(config).eval(), 4)
    for rid in ("first", "second"):
        engine.add(request([7], rid=rid, max_new_tokens=230))
    for _ in range(220):
        engine.step()
    engine.abort("first")
    [aborted] = [progress.result for progress in engine.step() if progress.result]
    assert (aborted.rid, aborted.finish_reason) == ("first", "abort")
    while not engine.idle:
        engine.step()


def test_an_id_in_flight_is_refused_and_may_be_used_again_later(tiny_policy: Policy) -> None:
    engine = EmbeddedEngine(tiny_policy.model, 4)
    engine.add(request(rid="a", max_new_tokens=2))
    with pytest.raises(EngineError, match="request a: another request with this id is in flight"):
        engine.add(request(rid="a"))
    while not engine.idle:
        engine.step()
    engine.add(request(rid="a"))
    assert (engine.num_waiting, engine.num_running) == (1, 0)


def test_fewer_run_at_once_where_the_cache_is_small(tiny_policy: Policy) -> None:
    """A position of this miniature takes 2 layers x (key + value) x 16 x 4 bytes, and 12 for ids and routing."""
    requests = varied(seed=3)
    row = 128 * (2 * 2 * 16 * 4 + 12)
    small = EmbeddedEngine(tiny_policy.model, 64, cache_bytes=5 * row)
    assert small.max_batch == 5
    assert [r.output_ids for r in small.generate(requests)] == [
        r.output_ids for r in EmbeddedEngine(tiny_policy.model, 64).generate(requests)
    ]
    with pytest.raises(EngineError, match="one sequence of 128 tokens needs"):
        EmbeddedEngine(tiny_policy.model, 64, cache_bytes=row - 1)
    shorter = EmbeddedEngine(tiny_policy.model, 64, context_tokens=32, cache_bytes=row)
    assert (shorter.context_length, shorter.max_batch) == (32, 4)
