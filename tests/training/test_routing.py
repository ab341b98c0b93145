"""Rollout Routing Replay (SLM-06): rollouts by a twin that routes otherwise; passes with experts set by hand."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rufus_core.algorithms.advantages import group_advantages
from rufus_core.algorithms.losses import kl_divergence, loss_denominator, policy_loss
from rufus_core.errors import ConfigError, DataError
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.rollout.following import FollowingEngine
from rufus_core.rollout.policy import Policy
from rufus_core.rollout.routing import replayed_routing, routers
from rufus_core.settings import RLStage
from rufus_core.training.base_policy import make_policy
from rufus_core.training.forward import TokenSequence, micro_batches, token_logprobs
from rufus_core.training.optimizer import make_optimizer, optimizer_step
from rufus_core.types import Trajectory, Verdict
from tests.training import reference, toy

SHAPE = toy.SHAPE.model_copy(update={"num_layers": 3, "num_experts": 8})
REPLAYED = {"precision": {"train": "fp32", "rollout": "fp32", "router_replay": True}}
GRPO = {"name": "grpo", "clip_low": 0.2, "clip_high": 0.2}


@pytest.fixture
def policy() -> Policy:
    """One dense layer and two with experts that matter; scaled, so that a wrong scale would tell."""
    policy = make_policy(SHAPE, [*toy.COLOURS, *toy.NAMES, "says"], seed=3)
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(8)
        policy.model.config.routed_scaling_factor = 1.5
        for layer, gate in routers(policy.model).items():
            gate.routed_scaling_factor = 1.5
            for weight in policy.model.model.layers[layer].mlp.experts.parameters():
                weight.mul_(8)
    return policy


def routed_otherwise(model: PreTrainedModel) -> PreTrainedModel:
    """A twin whose routers prefer other experts; their scores, and so the weights of the experts, stay equal."""
    twin = copy.deepcopy(model)
    for layer, gate in routers(twin).items():
        generator = torch.Generator().manual_seed(layer)
        gate.e_score_correction_bias.copy_(torch.randn(gate.num_experts, generator=generator))
    return twin


class OtherwiseEngine(FollowingEngine):
    def __init__(self, model: PreTrainedModel, **rest: Any) -> None:
        super().__init__(routed_otherwise(model), **rest)

    def load_weights(self, model: PreTrainedModel, version: str) -> None:
        super().load_weights(routed_otherwise(model), version)


def sequences(model: PreTrainedModel, lengths: Sequence[int], recorded: bool = True) -> list[TokenSequence]:
    """Random tokens, every other one trained, and the routing of `model`."""
    rng = random.Random(1)
    made = []
    for index, length in enumerate(lengths):
        ids = [rng.randrange(100) for _ in range(length)]
        routed = reference.routing(model, ids) if recorded else None
        made.append(TokenSequence(index, ids, [k % 2 for k in range(length)], routed))
    return made


def packed_logprobs(
    model: PreTrainedModel, given: Sequence[TokenSequence], most_tokens: int = 8192
) -> dict[tuple[int, int], Tensor]:
    """By (sequence, offset); with replay where routing is given."""
    found: dict[tuple[int, int], Tensor] = {}
    for micro in micro_batches(given, most_tokens):
        with replayed_routing(model, micro.routed_PLK):
            values, _ = token_logprobs(model, micro, 1.0)
        places = zip(micro.sequence_N.tolist(), micro.offset_N.tolist(), strict=True)
        found.update(zip(places, values, strict=True))
    return found


def logprobs_by_hand(model: PreTrainedModel, ids: Sequence[int], routed: NDArray[np.int32]) -> Tensor:
    """Log-prob of each token but the first, where each layer's experts are set and mixed token by token."""

    def mixed(layer: int, hidden_1TD: Tensor) -> Tensor:
        mlp = model.model.layers[layer].mlp
        rows = []
        for t, state_D in enumerate(hidden_1TD[0]):
            row = mlp.shared_experts(state_D)
            if t < len(routed):
                scores_E = torch.sigmoid(mlp.gate.weight @ state_D)
                taken = [int(expert) for expert in routed[t, layer]]
                total = sum(scores_E[expert] for expert in taken)
                for expert in taken:
                    gate, up = (mlp.experts.gate_up_proj[expert] @ state_D).chunk(2)
                    given = mlp.experts.down_proj[expert] @ (torch.nn.functional.silu(gate) * up)
                    row = row + 1.5 * scores_E[expert] / total * given
            rows.append(row)  # what the last token goes through has no bearing on what is measured
        return torch.stack(rows)[None]

    layers = list(routers(model))
    for layer in layers:
        model.model.layers[layer].mlp.forward = lambda hidden, layer=layer: mixed(layer, hidden)
    try:
        return reference.logprobs(model, ids)
    finally:
        for layer in layers:
            del model.model.layers[layer].mlp.forward


# -- one pass ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most_tokens", [1, 8192])
def test_replay_closes_the_gap_that_routing_makes_SLM_06(policy: Policy, most_tokens: int) -> None:
    lengths = [5, 90, 17, 200, 2, 64, 33]
    twin = routed_otherwise(policy.model)
    with torch.no_grad():
        given = sequences(twin, lengths)
        rollout = {s.index: reference.logprobs(twin, s.token_ids) for s in given}

        def gaps(given: list[TokenSequence]) -> list[float]:
            found = packed_logprobs(policy.model, given, most_tokens)
            return [abs(value - rollout[s][t - 1]).item() for (s, t), value in found.items()]

        free, replayed = gaps(sequences(twin, lengths, recorded=False)), gaps(given)
    assert np.mean(free) > 0.1
    assert max(replayed) < 1e-5
    assert len(free) == len(replayed) == sum(sum(s.mask[1:]) for s in given)


def test_the_trainer_takes_the_recorded_experts_of_every_token_SLM_06(policy: Policy) -> None:
    """Rows hold several sequences; the last token of each, and padding, have none recorded."""
    given = sequences(routed_otherwise(policy.model), [60, 50, 200])
    for micro in micro_batches(given, 8192):
        with replayed_routing(policy.model, micro.routed_PLK), reference.recorded(policy.model) as taken:
            token_logprobs(policy.model, micro, 1.0)
        for layer in routers(policy.model):
            was_recorded = micro.routed_PLK[:, layer] >= 0
            assert was_recorded.all(1).sum() == 59 + 49 + 199
            assert (taken[layer][was_recorded] == micro.routed_PLK[:, layer][was_recorded]).all()


def test_gradients_equal_those_with_the_same_experts_set_by_hand(policy: Policy) -> None:
    given = sequences(routed_otherwise(policy.model), [23, 40, 9])
    by_hand = copy.deepcopy(policy.model)
    loss = sum(value * (1 + t) for (_, t), value in packed_logprobs(policy.model, given).items())
    loss.backward()
    for s in given:
        values = logprobs_by_hand(by_hand, s.token_ids, s.routed_experts)
        sum(values[t - 1] * (1 + t) for t in range(1, len(s.token_ids)) if s.mask[t]).backward()
    for (name, ours), theirs in zip(policy.model.named_parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4 * theirs.grad.abs().max()), name
    for gate in routers(policy.model).values():
        assert gate.weight.grad.abs().max() > 1e-3


def test_replaying_its_own_choice_changes_nothing(policy: Policy) -> None:
    with torch.no_grad():
        free = packed_logprobs(policy.model, sequences(policy.model, [40, 60], recorded=False))
        replayed = packed_logprobs(policy.model, sequences(policy.model, [40, 60]))
    assert free.keys() == replayed.keys()
    assert max(abs(free[place] - replayed[place]).item() for place in free) < 1e-6


def test_a_sequence_without_routing_chooses_by_itself_beside_one_with(policy: Policy) -> None:
    bare = sequences(policy.model, [40, 60], recorded=False)
    routed = sequences(routed_otherwise(policy.model), [40, 60])
    with torch.no_grad():
        free, replayed = packed_logprobs(policy.model, bare), packed_logprobs(policy.model, routed)
        mixed = packed_logprobs(policy.model, [bare[0], routed[1]])
    expected = {place: (replayed if place[0] else free)[place] for place in free}
    assert mixed.keys() == expected.keys()
    assert max(abs(mixed[place] - expected[place]).item() for place in expected) < 1e-6


def test_routers_are_left_as_they_were(policy: Policy) -> None:
    (micro,) = micro_batches(sequences(routed_otherwise(policy.model), [40]), 8192)
    before, _ = token_logprobs(policy.model, micro, 1.0)
    with replayed_routing(policy.model, micro.routed_PLK):
        assert not torch.equal(token_logprobs(policy.model, micro, 1.0)[0], before)
    assert torch.equal(token_logprobs(policy.model, micro, 1.0)[0], before)


@pytest.mark.parametrize("rows", [0, 38, 40])
def test_routing_that_does_not_fit_the_tokens_is_refused(policy: Policy, rows: int) -> None:
    [sequence] = sequences(policy.model, [40], recorded=False)
    routed = np.zeros((rows, 3, 2), dtype=np.int32)
    odd = TokenSequence(7, sequence.token_ids, sequence.mask, routed)
    with pytest.raises(DataError, match=f"{rows} rows of routing for 40 tokens") as caught:
        list(micro_batches([odd], 8192))
    assert caught.value.where == "sequence 7"


@pytest.mark.parametrize(("shape", "expert"), [((39, 2, 2), 0), ((39, 3, 1), 0), ((39, 3, 2), 8), ((39, 3, 2), -2)])
def test_routing_of_another_model_is_refused(policy: Policy, shape: tuple[int, int, int], expert: int) -> None:
    routed = torch.full(shape, expert, dtype=torch.int32)
    with pytest.raises(DataError, match="doesn't fit the policy"), replayed_routing(policy.model, routed):
        pass


# -- the whole loop ---------------------------------------------------------------------------------------------------


def alternating_gym() -> SingleTurnGym:
    """Every other rollout passes: each group has something to learn, whatever was said."""
    verdicts: Iterator[Verdict] = itertools.cycle([Verdict.binary(True), Verdict.binary(False)])
    return SingleTurnGym(lambda episode: next(verdicts))


@pytest.mark.parametrize("opt_steps", [1, 2])
def test_a_forced_mismatch_shows_with_replay_off_and_is_gone_with_it_on(policy: Policy, opt_steps: int) -> None:
    changes = {"algorithm": {"tis": True}, "rollout": {"opt_steps_per_rollout": opt_steps}, "run": {"steps": 2}}
    off, free = toy.run_rl(toy.copy_of(policy), toy.rl_stage(**changes), alternating_gym(), engine=OtherwiseEngine)
    on, recorded = toy.run_rl(
        toy.copy_of(policy), toy.rl_stage(**changes, **REPLAYED), alternating_gym(), engine=OtherwiseEngine
    )
    assert recorded[0].token_ids == free[0].token_ids
    assert all(t.routed_experts is None for t in free)
    assert all(t.routed_experts.shape == (len(t.token_ids) - 1, 3, 2) for t in recorded)
    for step in range(2):
        assert off[step]["logprob_gap"] > 0.1
        assert "routing_agreement" not in off[step]
        assert on[step]["logprob_gap"] < 1e-5
        assert on[step]["tis_weight"] == pytest.approx(1, abs=1e-5)
        assert 0.1 < on[step]["routing_agreement"] < 0.9


def test_engine_and_trainer_on_one_model_agree_and_route_alike(policy: Policy) -> None:
    rows, _ = toy.run_rl(policy, toy.rl_stage(**REPLAYED), alternating_gym())
    assert rows[0]["routing_agreement"] == pytest.approx(1, abs=1e-3)
    assert rows[0]["logprob_gap"] < 1e-5


def _loss_by_hand(
    model: PreTrainedModel, issued: Sequence[Trajectory], share: slice, old: Sequence[Tensor], stage: RLStage
) -> Tensor:
    names = [t.problem_id for t in issued]
    advantages = group_advantages([t.reward for t in issued], names, stage.algorithm.advantage)[share]
    new = [_sampled(t, logprobs_by_hand(model, t.token_ids, t.routed_experts)) for t in issued[share]]
    index = torch.cat([torch.full((len(values),), k) for k, values in enumerate(new)])
    return policy_loss(
        torch.cat(new),
        torch.cat(list(old[share])),
        torch.cat([_sampled(t, torch.tensor(t.logprobs[1:])) for t in issued[share]]),
        index,
        torch.tensor(advantages, dtype=torch.float32),
        torch.ones_like(index, dtype=torch.bool),
        denominator=loss_denominator([len(values) for values in new], stage.algorithm),
        settings=stage.algorithm,
    ).loss


def _sampled(t: Trajectory, values: Tensor) -> Tensor:
    """Of values for each token but the first, those of sampled tokens."""
    return values[torch.tensor(t.loss_mask[1:]) == 1]


def test_every_optimizer_step_takes_the_routing_of_the_rollout(policy: Policy) -> None:
    """Old log-probs too: two steps equal two with experts set by hand, although the routers move in between."""
    stage = toy.rl_stage(
        **REPLAYED,
        algorithm=GRPO,
        optimizer={"lr_peak": 1e-2, "eps": 1e-3},
        rollout={"opt_steps_per_rollout": 2, "prompts_per_rollout": 2, "samples_per_prompt": 4},
    )
    by_hand = toy.copy_of(policy).model.train()
    _, issued = toy.run_rl(policy, stage, alternating_gym(), engine=OtherwiseEngine)
    with torch.no_grad():
        old = [_sampled(t, logprobs_by_hand(by_hand, t.token_ids, t.routed_experts)) for t in issued]
    optimizer = make_optimizer(by_hand, stage.optimizer)
    for share in (slice(0, 4), slice(4, 8)):
        _loss_by_hand(by_hand, issued, share, old, stage).backward()
        optimizer_step(by_hand, optimizer, stage.optimizer.lr_peak, stage.optimizer.grad_clip)
    trained = dict(policy.model.named_parameters())
    assert reference.largest_difference(trained, by_hand) < 1e-4


def test_the_kl_reference_routes_by_itself(policy: Policy) -> None:
    first = toy.copy_of(policy).model
    rows, issued = toy.run_rl(
        policy, toy.rl_stage(**REPLAYED, algorithm={"kl_coef": 0.01}), alternating_gym(), engine=OtherwiseEngine
    )
    with torch.no_grad():
        apart = [
            _sampled(t, logprobs_by_hand(first, t.token_ids, t.routed_experts) - reference.logprobs(first, t.token_ids))
            for t in issued
        ]
    assert rows[0]["ref_kl"] == pytest.approx(kl_divergence(torch.cat(apart), "k3").mean().item(), rel=1e-4)
    assert rows[0]["ref_kl"] > 1e-3


def test_a_policy_without_a_router_is_refused() -> None:
    dense = make_policy(SHAPE.model_copy(update={"first_dense_layers": 3}), ["says"], seed=0)
    with pytest.raises(ConfigError, match="no router to replay") as caught:
        toy.run_rl(dense, toy.rl_stage(**REPLAYED))
    assert caught.value.where == "precision.router_replay"
    assert caught.value.hint
