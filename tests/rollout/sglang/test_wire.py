"""Requests and replies of the native protocol: what fits goes through unchanged, what doesn't is refused."""

from __future__ import annotations

import base64
import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.errors import EngineError
from rufus_core.rollout.server.protocol import GenerateInput, Limits, engine_requests
from rufus_core.rollout.sglang.facts import PolicyFacts
from rufus_core.rollout.sglang.wire import request_body, result_of
from tests.rollout.requests import request

FACTS = PolicyFacts(context_length=64, vocab_size=100, num_layers=3, experts_per_token=2)
WANTED = request([5, 6, 7], return_routed_experts=True, input_logprobs_from=1, top_logprobs=1)


def reply() -> dict[str, Any]:
    """To `WANTED`: two tokens after three."""
    routed = np.arange(4 * 3 * 2, dtype="<i4")
    return {
        "text": "",
        "output_ids": [8, 9],
        "meta_info": {
            "finish_reason": {"type": "length", "length": 2},
            "weight_version": "3",
            "cached_tokens": 1,
            "input_token_logprobs": [[None, 5, None], [-1.5, 6, None], [-2.5, 7, None]],
            "output_token_logprobs": [[-0.5, 8, None], [-0.25, 9, None]],
            "output_top_logprobs": [[[-0.5, 8, None]], [[-0.1, 4, None]]],
            "routed_experts": base64.b64encode(routed.tobytes()).decode(),
        },
    }


def test_a_reply_says_all_that_was_asked_for() -> None:
    result = result_of(reply(), WANTED, FACTS)
    assert (result.output_ids, result.output_logprobs, result.finish_reason) == ([8, 9], [-0.5, -0.25], "length")
    assert (result.weight_version, result.cached_tokens) == ("3", 1)
    assert result.input_logprobs == [-1.5, -2.5]
    assert result.top_logprobs == [[(-0.5, 8)], [(-0.1, 4)]]
    assert result.routed_experts is not None
    assert result.routed_experts.tolist() == np.arange(24).reshape(4, 3, 2).tolist()


def _without(key: str) -> Any:
    return lambda r: r["meta_info"].pop(key)


def _with(key: str, value: Any) -> Any:
    return lambda r: r["meta_info"].update({key: value})


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (_without("routed_experts"), "--enable-return-routed-experts"),
        (_with("routed_experts", "&&&"), "no base64"),
        (_with("routed_experts", base64.b64encode(bytes(4)).decode()), "1 entries for 4 tokens of 3 layers"),
        (_with("output_token_logprobs", [[-0.5, 8, None]]), "1 log-probs for 2 tokens"),
        (_with("input_token_logprobs", []), "0 log-probs for 2 tokens of the prompt"),
        (_with("finish_reason", {"type": "tired"}), "tired"),
        (_with("finish_reason", None), "can't be used"),
        (_without("weight_version"), "it has no 'weight_version'"),
        (lambda r: r.update(output_ids=["8", "9"]), "'8' is no token id"),
        (lambda r: r.pop("meta_info"), "it has no 'meta_info'"),
        (lambda r: r.update(meta_info=None), "can't be used"),
    ],
)
def test_a_reply_that_does_not_fit_is_refused(harm: Any, reason: str) -> None:
    harmed = copy.deepcopy(reply())
    harm(harmed)
    with pytest.raises(EngineError, match=reason) as caught:
        result_of(harmed, WANTED, FACTS)
    assert "request r" in str(caught.value)


@pytest.mark.parametrize("harmed", [None, [], "fine", 3])
def test_a_reply_of_no_shape_at_all_is_refused(harmed: Any) -> None:
    with pytest.raises(EngineError, match="can't be used"):
        result_of(harmed, WANTED, FACTS)


def test_what_was_aborted_before_it_began_has_no_routing() -> None:
    early = {
        "output_ids": [],
        "meta_info": {"finish_reason": {"type": "abort"}, "weight_version": "0", "output_token_logprobs": []},
    }
    result = result_of(early, request(return_routed_experts=True), FACTS)
    assert result.routed_experts is not None
    assert (result.finish_reason, result.routed_experts.shape) == ("abort", (0, 3, 2))


@given(
    prompt=st.lists(st.integers(0, 99), min_size=1, max_size=63),
    max_new_tokens=st.integers(1, 200),
    temperature=st.floats(0.1, 2.0),
    top_p=st.floats(0.1, 1.0),
    top_k=st.sampled_from([-1, 1, 40]),
    stop_token_ids=st.lists(st.integers(0, 99), max_size=3, unique=True).map(tuple),
    sampling_seed=st.integers(-(2**63), 2**64 - 1),
)
def test_a_request_means_the_same_on_the_other_side(prompt: list[int], max_new_tokens: int, **params: Any) -> None:
    """The embedded engine's server reads it as SGLang does; of the tokens asked for there are as many as fit."""
    wanted = request(prompt, max_new_tokens=max_new_tokens, **params)
    body = request_body(wanted, "its-name", FACTS.context_length)
    limits = Limits(FACTS.context_length, FACTS.vocab_size, eos_ids=())
    [read] = engine_requests(GenerateInput.model_validate(body), body["input_ids"], limits)
    assert (read.rid, read.input_ids) == ("its-name", prompt)
    sent, got = wanted.sampling_params, read.sampling_params
    assert got.max_new_tokens == min(max_new_tokens, FACTS.context_length - len(prompt))
    assert (got.temperature, got.top_p, got.top_k) == (sent.temperature, sent.top_p, sent.top_k)
    assert got.stop_token_ids == sent.stop_token_ids
    assert got.sampling_seed == sent.sampling_seed % 2**63
