"""The engine against Hugging Face on small random models of several families: log-probs, greedy ids, routing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from rufus_core.errors import EngineError
from rufus_core.rollout.engine import EmbeddedEngine
from rufus_core.rollout.weights import has_known_layers
from tests.rollout.requests import full_logits, full_logprobs, prompts, request

SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "attention_bias": False,
}
EXPERTS: dict[str, Any] = {
    "first_k_dense_replace": 1, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "n_group": 1, "topk_group": 1, "use_qk_norm": True, "routed_scaling_factor": 1.7,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip

KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, one query a head": ("llama", {"num_key_value_heads": 6}),
    "llama 3's positions, tied": ("llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "qwen2, with biases": ("qwen2", {}),
    "qwen3, with norms of queries and keys": ("qwen3", {}),
    "glm4_moe": ("glm4_moe", EXPERTS),
    "glm4_moe, groups of experts": ("glm4_moe", EXPERTS | {"n_group": 4, "topk_group": 2}),
    "glm4_moe, biased choice": ("glm4_moe", EXPERTS | {"norm_topk_prob": False, "use_qk_norm": False}),
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_neox": ("gpt_neox", {"num_key_value_heads": 6}),
    "granite, scaled residuals": ("granite", {"residual_multiplier": 0.7, "attention_multiplier": 0.3}),
    "olmo2": ("olmo2", {}),
}


def make(kind: str, changes: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    config = CONFIG_MAPPING[kind](**(SHAPE | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms of ones and biases of zeros would hide a wrong one
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif "gate.weight" in name:
                parameter.normal_(std=0.5)
            elif "head" in name or (config.tie_word_embeddings and "embed" in name):
                parameter.mul_(12)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.3)
    return model


FAMILIES = KNOWN | OTHERS


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_says_what_hugging_face_says(name: str) -> None:
    model = make(*FAMILIES[name])
    assert has_known_layers(model) is (name in KNOWN)
    engine = EmbeddedEngine(model, 4)
    batch = prompts([1, 5, 17, 17, 40], vocabulary=300)
    for _ in range(2):  # at first computed, then from what is kept
        results = engine.generate([request(p, temperature=0.0, max_new_tokens=20) for p in batch])
        for prompt, result in zip(batch, results, strict=True):
            ids = list(prompt)
            for _ in range(20):
                ids.append(int(full_logits(model, ids)[-1].argmax()))
            assert result.output_ids == ids[len(prompt) :]
            assert result.output_logprobs == pytest.approx(full_logprobs(model, prompt, result.output_ids), abs=1e-5)


@pytest.mark.parametrize("name", ["glm4_moe", "glm4_moe, groups of experts", "glm4_moe, biased choice"])
def test_routing_is_that_of_a_plain_forward(name: str) -> None:
    model = make(*KNOWN[name])
    engine = EmbeddedEngine(model, 4)
    batch = prompts([1, 12, 30, 30], vocabulary=300)
    results = engine.generate([request(p, return_routed_experts=True, sampling_seed=i) for i, p in enumerate(batch)])
    for prompt, result in zip(batch, results, strict=True):
        assert result.routed_experts is not None
        expected = plain_routing(model, [*prompt, *result.output_ids[:-1]])
        assert result.routed_experts.shape == (len(prompt) + 15, 3, 3)
        assert result.routed_experts.dtype == np.int32
        assert not result.routed_experts[:, 0].any()  # dense
        assert np.array_equal(np.sort(result.routed_experts[:, 1:], axis=-1), np.sort(expected, axis=-1))


def plain_routing(model: PreTrainedModel, ids: list[int]) -> np.ndarray[Any, Any]:
    """[T, layers with experts, experts a token], by hooks on Hugging Face's routers."""
    found: list[torch.Tensor] = []
    hook: Callable[..., None] = lambda _module, _inputs, output: found.append(output[2])  # noqa: E731
    handles = [layer.mlp.gate.register_forward_hook(hook) for layer in model.model.layers[1:]]
    full_logits(model, ids)
    for handle in handles:
        handle.remove()
    return torch.stack(found, dim=1).numpy()


def test_a_model_without_experts_has_no_routing_to_return() -> None:
    with pytest.raises(EngineError, match="this model has no experts"):
        EmbeddedEngine(make("llama", {})).generate([request(return_routed_experts=True)])


def test_a_model_that_forgets_is_refused() -> None:
    model = make("mistral", {"sliding_window": 16})
    with pytest.raises(EngineError, match="this engine serves full attention"):
        EmbeddedEngine(model)


@pytest.mark.parametrize(("kind", "change"), [("granite", {"logits_scaling": 8.0}), ("cohere", {"logit_scale": 0.06})])
def test_a_model_that_changes_its_heads_logits_is_refused(kind: str, change: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=f"takes logits as the head gives them, and a {kind} model changes them"):
        EmbeddedEngine(make(kind, change))


def test_weights_of_half_precision_are_served_and_replaced_with_their_routers_bias() -> None:
    old, new = (make("glm4_moe", EXPERTS).to(torch.bfloat16) for _ in range(2))
    for name, buffer in new.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.neg_()
    [prompt] = prompts([20], vocabulary=300)
    wanted = request(prompt, temperature=0.0)
    engine = EmbeddedEngine(old)
    [before] = engine.generate([wanted])
    assert before.output_logprobs == pytest.approx(full_logprobs(old, prompt, before.output_ids), abs=0.2)
    engine.load_weights(new, "0")
    [after] = engine.generate([wanted])
    assert after == EmbeddedEngine(new).generate([wanted])[0]
    assert after.output_logprobs != before.output_logprobs


def test_log_probs_of_a_prompt_and_the_most_likely_tokens() -> None:
    model = make("llama", {})
    engine = EmbeddedEngine(model, 4)
    [prompt] = prompts([30], vocabulary=300)
    engine.generate([request(prompt, max_new_tokens=1)])  # what is kept may not stand in for what is asked for
    expected = full_logprobs(model, prompt[:1], prompt[1:])
    whole, part, last, none = engine.generate(
        [request(prompt, input_logprobs_from=start, top_logprobs=3) for start in (0, 10, 29, None)]
    )
    assert whole.input_logprobs is not None
    assert whole.input_logprobs[0] is None
    assert whole.input_logprobs[1:] == pytest.approx(expected, abs=1e-5)
    assert part.input_logprobs == pytest.approx(expected[9:], abs=1e-5)
    assert last.input_logprobs == pytest.approx(expected[28:], abs=1e-5)
    assert none.input_logprobs is None
    logprobs = full_logits(model, [*prompt, *whole.output_ids])[29:-1].log_softmax(-1)
    values, ids = logprobs.topk(3)
    assert whole.top_logprobs is not None
    assert [[token for _, token in row] for row in whole.top_logprobs] == ids.tolist()
    assert np.allclose([[value for value, _ in row] for row in whole.top_logprobs], values, atol=1e-5)
