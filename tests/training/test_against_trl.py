"""Whole optimizer steps of TRL's GRPOTrainer against ours, down to parameter gradients: same model, rollouts, rewards.

The miniature is in float64 on both sides. Both heads give float32 log-probs, so 1e-6 relative is what can be reached.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rufus_core.algorithms.losses import loss_denominator, merge_metrics, policy_loss
from rufus_core.settings import AlgorithmSettings
from rufus_core.training.forward import PackedBatch, TokenSequence, micro_batches, token_logprobs
from tests.algorithms import trl_peer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:You are using 'rollout_func'")
GRPO = AlgorithmSettings(name="grpo", clip_low=0.02, clip_high=0.03, kl_coef=0.2)
GSPO = AlgorithmSettings(name="gspo", clip_low=0.002, clip_high=0.003, tis=True)
STOP = 0  # the tokenizer's end of sequence: a completion without it is truncated
TEMPERATURE = 0.7
TWO_STEPS = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 2}


class Rollouts:
    """Four completions for each of two prompts of uneven length, with a tool's tokens in some and some truncated."""

    def __init__(self, folder: Path) -> None:
        draw = random.Random(0)
        ids = lambda length: [draw.randrange(5, 60) for _ in range(length)]  # noqa: E731
        self.prompts = {name: ids(length) for name, length in zip(trl_peer.PROMPTS, (4, 7), strict=True)}
        self.completions = {
            name: [[*ids(length), STOP] if length != 9 else ids(length) for length in (3, 9, 12, 6)]
            for name in trl_peer.PROMPTS
        }
        self.sequences = [
            TokenSequence(
                index,
                self.prompts[name] + completion,
                [0] * len(self.prompts[name])
                + [int(len(completion) < 10 or t not in (4, 5)) for t, _ in enumerate(completion)],
            )
            for index, (name, completion) in enumerate((n, c) for n in trl_peer.PROMPTS for c in self.completions[n])
        ]
        self.first = trl_peer.miniature(folder).train()
        self.old = logprobs(self.first, self.sequences)
        self.rollout = {place: value + draw.gauss(0, 0.5) for place, value in self.old.items()}
        self.rewards = {
            tuple(c): reward
            for name, rewards in zip(trl_peer.PROMPTS, ((1.0, 0.0, 0.5, 0.0), (0.0, 1.0, 1.0, 0.2)), strict=True)
            for c, reward in zip(self.completions[name], rewards, strict=True)
        }
        self.index = {tuple(c): i for i, c in enumerate(c for n in trl_peer.PROMPTS for c in self.completions[n])}

    def __call__(self, prompts: Sequence[str]) -> dict[str, Any]:
        """As TRL asks for it: a prompt stands there once for each of its completions."""
        taken = {name: iter(self.completions[name]) for name in trl_peer.PROMPTS}
        completions = [next(taken[name]) for name in prompts]
        chosen = [self.sequences[self.index[tuple(c)]] for c in completions]
        starts = [len(self.prompts[name]) for name in prompts]
        return {
            "prompt_ids": [self.prompts[name] for name in prompts],
            "completion_ids": completions,
            "env_mask": [list(s.mask[start:]) for s, start in zip(chosen, starts, strict=True)],
            "logprobs": [
                [self.rollout.get((s.index, t), -1.0) for t in range(start, len(s.token_ids))]
                for s, start in zip(chosen, starts, strict=True)
            ],
        }


def places(micro: PackedBatch) -> list[tuple[int, int]]:
    return list(zip(micro.sequence_N.tolist(), micro.offset_N.tolist(), strict=True))


def logprobs(model: PreTrainedModel, sequences: Sequence[TokenSequence]) -> dict[tuple[int, int], float]:
    """Of each trained token, by (sequence, position)."""
    found = {}
    with torch.no_grad():
        for micro in micro_batches(sequences, 8192):
            found.update(zip(places(micro), token_logprobs(model, micro, TEMPERATURE)[0].tolist(), strict=True))
    return found


def our_step(
    rollouts: Rollouts, model: PreTrainedModel, advantages: dict[int, float], settings: AlgorithmSettings
) -> tuple[float, dict[str, Tensor], dict[str, float]]:
    """Loss, parameter gradients and metrics of a step, in two micro-batches, on the rollouts with an advantage here."""
    chosen = [rollouts.sequences[index] for index in advantages]
    masks = [
        [0] * len(s.mask) if settings.truncation_masking and s.token_ids[-1] != STOP else list(s.mask) for s in chosen
    ]
    denominator = loss_denominator([sum(mask) for mask in masks], settings)
    reference = logprobs(rollouts.first, chosen)
    model.zero_grad()
    outputs = []
    trained = [TokenSequence(s.index, s.token_ids, mask) for s, mask in zip(chosen, masks, strict=True)]
    for micro in [*micro_batches(trained[:1], 8192), *micro_batches(trained[1:], 8192)]:
        new_N, _ = token_logprobs(model, micro, TEMPERATURE)
        at = places(micro)
        output = policy_loss(
            new_N,
            torch.tensor([rollouts.old[place] for place in at]),
            torch.tensor([rollouts.rollout[place] for place in at]),
            micro.sequence_N,
            torch.tensor([advantages.get(index, 0.0) for index in range(len(rollouts.sequences))]),
            torch.ones_like(micro.sequence_N),
            denominator=denominator,
            settings=settings,
            ref_T=torch.tensor([reference[place] for place in at]),
        )
        output.loss.backward()
        outputs.append(output)
    gradients = {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}
    return sum(output.loss.item() for output in outputs), gradients, merge_metrics(outputs)


def advantages_in(step: trl_peer.Step, rollouts: Rollouts) -> dict[int, float]:
    """By index of the rollout. TRL shuffles what it generated, so a step's rows are known by their ids."""
    found = {}
    for inputs in step.inputs:
        for ids, advantage in zip(inputs["completion_ids"].tolist(), inputs["advantages"].tolist(), strict=True):
            (index,) = [i for c, i in rollouts.index.items() if tuple(ids[: len(c)]) == c and not any(ids[len(c) :])]
            found[index] = advantage
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    trl_peer.save_miniature(folder)
    return folder


@pytest.fixture(scope="module")
def rollouts(folder: Path) -> Rollouts:
    return Rollouts(folder)


CASES = {
    "grpo with kl": (GRPO, TWO_STEPS),
    "grpo mean-only, per token": (
        GRPO.model_copy(update={"length_normalization": "per_token", "advantage": "mean_only"}),
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    ),
    "gspo with tis": (GSPO, TWO_STEPS),
    "gspo with tis, truncated masked": (GSPO.model_copy(update={"truncation_masking": True}), TWO_STEPS),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_parameter_gradients_are_equal(folder: Path, rollouts: Rollouts, name: str) -> None:
    settings, config = CASES[name]
    made = trl_peer.trainer(folder, settings, rollouts, rollouts.rewards, temperature=TEMPERATURE, **config)
    steps = trl_peer.optimizer_steps(made)
    assert len(steps) == made.args.max_steps
    model = trl_peer.miniature(folder).train()
    for number, step in enumerate(steps):
        model.load_state_dict(step.weights)
        loss, gradients, metrics = our_step(rollouts, model, advantages_in(step, rollouts), settings)
        assert (metrics["policy_kl"] > 1e-4) == (number > 0)  # a second step is off policy
        assert loss == pytest.approx(step.loss, rel=1e-6, abs=1e-7)  # of terms near 0.3
        assert_gradients_equal(gradients, step.gradients)


def test_trls_mean_over_tokens_is_by_the_average_step_of_a_rollout(folder: Path, rollouts: Rollouts) -> None:
    """Where a rollout feeds several optimizer steps, its dapo divides each by their average tokens, we by its own."""
    settings = GRPO.model_copy(update={"length_normalization": "per_token"})
    made = trl_peer.trainer(folder, settings, rollouts, rollouts.rewards, temperature=TEMPERATURE, **TWO_STEPS)
    steps = trl_peer.optimizer_steps(made)
    tokens = [sum(sum(rollouts.sequences[i].mask) for i in advantages_in(step, rollouts)) for step in steps]
    assert tokens[0] != tokens[1]
    model = trl_peer.miniature(folder).train()
    for step, own in zip(steps, tokens, strict=True):
        model.load_state_dict(step.weights)
        loss, gradients, _ = our_step(rollouts, model, advantages_in(step, rollouts), settings)
        share = own / (sum(tokens) / len(tokens))
        assert loss * share == pytest.approx(step.loss, rel=1e-6, abs=1e-7)
        assert_gradients_equal({name: g * share for name, g in gradients.items()}, step.gradients)


def assert_gradients_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Relative to the largest entry of all."""
    assert found.keys() == expected.keys()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    assert largest > 1e-2
    assert max((found[name] - gradient).abs().max().item() for name, gradient in expected.items()) <= 1e-6 * largest
