"""Packed rows give what single sequences give (SFT-06, SLM-02)."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from rufus_core.errors import ConfigError
from rufus_core.rollout.policy import Policy
from rufus_core.training.forward import TokenSequence, micro_batches, token_logprobs
from tests.training import reference, toy


@pytest.fixture(scope="module")
def untrained() -> Policy:
    return toy.toy_policy()


def _sequences(policy: Policy, lengths: list[int]) -> list[TokenSequence]:
    rng = random.Random(1)
    size = len(policy.chat.tokenizer)
    return [
        TokenSequence(index, [rng.randrange(size) for _ in range(n)], [rng.randrange(2) for _ in range(n)])
        for index, n in enumerate(lengths)
    ]


def _values(
    policy: Policy, sequences: list[TokenSequence], most_tokens: int, temperature: float = 1.0
) -> dict[tuple[int, int], float]:
    """Log-probs by (sequence, offset)."""
    found = {}
    with torch.no_grad():
        for micro in micro_batches(sequences, most_tokens):
            values, _ = token_logprobs(policy.model, micro, temperature)
            places = zip(micro.sequence_N.tolist(), micro.offset_N.tolist(), strict=True)
            found.update(zip(places, values.tolist(), strict=True))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("most_tokens", [1, 512, 8192])
def test_packed_logprobs_equal_those_of_single_sequences(
    untrained: Policy, most_tokens: int, temperature: float
) -> None:
    sequences = _sequences(untrained, [5, 90, 17, 200, 2, 64, 256, 1, 33])
    found = _values(untrained, sequences, most_tokens, temperature)
    expected = {}
    with torch.no_grad():
        for s in sequences:
            row = reference.logprobs(untrained.model, s.token_ids, temperature).tolist()
            expected |= {(s.index, t): row[t - 1] for t in range(1, len(s.token_ids)) if s.mask[t]}
    assert found.keys() == expected.keys()
    assert max(abs(found[place] - expected[place]) for place in expected) < 1e-5


def test_sequences_do_not_see_each_other(untrained: Policy) -> None:
    sequences = _sequences(untrained, [40, 60, 60, 30])  # all in one row, two of them in one block
    before = _values(untrained, sequences, 8192)
    other = [7] * 60
    changed = [TokenSequence(1, other, s.mask) if s.index == 1 else s for s in sequences]
    after = _values(untrained, changed, 8192)
    for place, value in before.items():
        if place[0] != 1:
            assert after[place] == pytest.approx(value, abs=1e-6)
    assert any(abs(after[place] - value) > 1e-3 for place, value in before.items() if place[0] == 1)


def test_the_first_token_of_a_sequence_is_never_a_target(untrained: Policy) -> None:
    sequences = [TokenSequence(i, [3, 4, 5], [1, 1, 1]) for i in range(3)]
    (micro,) = micro_batches(sequences, 8192)
    assert sorted(zip(micro.sequence_N.tolist(), micro.offset_N.tolist(), strict=True)) == [
        (i, t) for i in range(3) for t in (1, 2)
    ]
    assert sorted(micro.target_N.tolist()) == [4, 4, 4, 5, 5, 5]


def test_a_sliding_window_bounds_what_a_position_sees() -> None:
    config = MistralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=8,
    )
    torch.manual_seed(0)
    model = MistralForCausalLM(config)
    sequences = [TokenSequence(i, [(7 * i + 3 * t) % 50 for t in range(n)], [1] * n) for i, n in enumerate((30, 8, 30))]
    (micro,) = micro_batches(sequences, 8192)
    with torch.no_grad():
        found, _ = token_logprobs(model, micro, 1.0)
        expected = torch.cat([reference.logprobs(model, sequences[i].token_ids) for i in (0, 2, 1)])
        config.sliding_window = None
        assert (token_logprobs(model, micro, 1.0)[0] - expected).abs().max() > 1e-4
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_model_that_attends_otherwise_is_refused_and_left_as_it_was() -> None:
    model = toy.toy_policy().model
    (micro,) = micro_batches([TokenSequence(0, [3, 4, 5], [1, 1, 1])], 8192)
    token_logprobs(model, micro, 1.0)
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match="'eager'"):
        token_logprobs(model, micro, 1.0)
    assert model.config._attn_implementation == "eager"


def test_every_sequence_is_in_exactly_one_micro_batch() -> None:
    sequences = [TokenSequence(i, [1] * (10 + i), [1] * (10 + i)) for i in range(60)]
    batches = list(micro_batches(sequences, 300))
    assert len(batches) > 1
    seen = [s for micro in batches for s in set(micro.sequence_N.tolist())]
    assert sorted(seen) == list(range(60))
    assert sum(len(micro.target_N) for micro in batches) == sum(len(s.token_ids) - 1 for s in sequences)


def test_nothing_to_pack() -> None:
    assert list(micro_batches([], 100)) == []
