"""The RL loop against the same steps computed one sequence at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rufus_core.algorithms.advantages import group_advantages
from rufus_core.algorithms.losses import loss_denominator, policy_loss
from rufus_core.errors import DataError
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.rollout.policy import Policy
from rufus_core.settings import AlgorithmSettings
from rufus_core.training.diagnostic import Diagnostic
from rufus_core.training.rl import at_step, split_groups
from rufus_core.types import Episode, Trajectory, Verdict
from tests.training import reference, toy

GSPO = {"name": "gspo", "clip_low": 0.2, "clip_high": 0.2}
GRPO = {"name": "grpo", "clip_low": 0.2, "clip_high": 0.2}


def _by_name(weights: PreTrainedModel) -> dict[str, Tensor]:
    return {name: w.detach().clone() for name, w in weights.named_parameters()}


def _sampled(trajectory: Trajectory, values: Sequence[float] | Tensor) -> Tensor:
    """Of values for each token but the first, those of sampled tokens."""
    return torch.as_tensor(values)[torch.tensor(trajectory.loss_mask[1:]) == 1]


def _loss(model: PreTrainedModel, trajectories: Sequence[Trajectory], size: int, settings: AlgorithmSettings) -> Tensor:
    """The loss of one optimizer step on all of them, each with a pass of its own, zero advantages included."""
    groups = [str(k // size) for k in range(len(trajectories))]
    advantages = group_advantages([t.reward for t in trajectories], groups, settings.advantage)
    new, rollout, sequence, masks = [], [], [], []
    for index, t in enumerate(trajectories):
        values = _sampled(t, reference.logprobs(model, t.token_ids))
        trained = not (settings.truncation_masking and t.truncated)
        new.append(values)
        rollout.append(_sampled(t, t.logprobs[1:]))
        sequence.append(torch.full_like(values, index, dtype=torch.long))
        masks.append(torch.full_like(values, trained, dtype=torch.bool))
    new_T, mask_T = torch.cat(new), torch.cat(masks)
    return policy_loss(
        new_T,
        new_T.detach(),
        torch.cat(rollout),
        torch.cat(sequence),
        torch.tensor(advantages, dtype=torch.float32),
        mask_T,
        denominator=loss_denominator([int(mask.sum()) for mask in masks], settings),
        settings=settings,
    ).loss


@pytest.mark.parametrize(
    "algorithm",
    [
        GSPO,
        GRPO | {"advantage": "mean_only"},
        GSPO | {"tis": True, "truncation_masking": True},
        GRPO | {"length_normalization": "per_token", "truncation_masking": True},
    ],
    ids=["gspo", "grpo-mean-only", "gspo-tis-masked", "grpo-per-token-masked"],
)
def test_a_step_equals_the_full_computation_RRL_T5(policy: Policy, algorithm: dict[str, object]) -> None:
    """Rollouts without advantage cost no pass but count in the denominator; truncated ones carry no loss."""
    before = toy.copy_of(policy).model
    stage = toy.rl_stage(optimizer=toy.PLAIN_STEP, algorithm=algorithm)
    names = "Ann", "Ben", "Cleo"
    # Ben is never right: a group without signal
    gym = SingleTurnGym(lambda e: Verdict.binary(e.final_text == "red" and "Ben" not in e.messages[0].content))
    rows, issued = toy.run_rl(policy, stage, gym, [toy.problem(name) for name in (*names, "Dan")])
    truncated = sum(t.truncated for t in issued)
    assert 0 < truncated < len(issued)
    silent = [t for t in issued if t.problem_id == toy.problem("Ben").id]
    assert len(silent) == 8
    assert not any(t.reward for t in silent)
    weights = reference.after_plain_step(before, lambda model: _loss(model, issued, 8, stage.algorithm))
    assert reference.largest_difference(weights, policy.model) < 1e-5
    assert reference.largest_difference(_by_name(before), policy.model) > 1e-3
    assert rows[0]["skipped_updates"] == 0


def test_the_step_does_not_depend_on_how_a_batch_is_cut(policy: Policy) -> None:
    stage = toy.rl_stage(
        optimizer=toy.PLAIN_STEP,
        rollout={"opt_steps_per_rollout": 2},
        algorithm=GSPO | {"kl_coef": 0.1, "entropy_coef": 0.01, "tis": True},
        run={"steps": 2},
    )
    trained, losses = [], []
    for most_tokens in (8192, 1):
        twin = toy.copy_of(policy)
        rows, issued = toy.run_rl(twin, stage, micro_batch_tokens=most_tokens)
        assert sum(len(t.token_ids) for t in issued) > 512  # more than one row
        trained.append(twin.model)
        losses.append({name: value for name, value in rows[-1].items() if not name.endswith("seconds")})
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert reference.largest_difference(_by_name(trained[0]), trained[1]) < 1e-5


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_the_trainer_agrees_with_the_rollout(policy: Policy, temperature: float) -> None:
    before = toy.copy_of(policy).model
    stage = toy.rl_stage(rollout={"temperature": temperature}, algorithm={"tis": True}, run={"steps": 1})
    rows, issued = toy.run_rl(policy, stage)
    with torch.no_grad():
        for t in issued:
            ours = _sampled(t, reference.logprobs(before, t.token_ids, temperature))
            assert torch.allclose(ours, _sampled(t, t.logprobs[1:]), atol=1e-5)
    assert rows[0]["tis_weight"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("opt_steps", [1, 2])
def test_the_ratio_is_one_while_the_policy_stands_still(policy: Policy, opt_steps: int) -> None:
    stage = toy.rl_stage(optimizer={"lr_peak": 1e-12}, rollout={"opt_steps_per_rollout": opt_steps})
    rows, _ = toy.run_rl(policy, stage)
    assert rows[0]["ratio"] == pytest.approx(1, abs=1e-6)
    assert rows[0]["clip_fraction"] == 0
    assert rows[0]["policy_kl"] == pytest.approx(0, abs=1e-9)


def test_a_second_step_on_a_rollout_is_off_policy(policy: Policy) -> None:
    """The old log-probs are those before the first of them."""
    rows, _ = toy.run_rl(policy, toy.rl_stage(rollout={"opt_steps_per_rollout": 2}, optimizer={"lr_peak": 3e-2}))
    assert rows[0]["policy_kl"] > 1e-4


@pytest.mark.parametrize(
    ("sizes", "parts", "shares"),
    [
        ([8, 8, 8, 8], 2, [(0, 16), (16, 32)]),
        ([8, 3, 5, 2], 2, [(0, 11), (11, 18)]),
        ([8, 8, 8, 8], 1, [(0, 32)]),
        ([4], 2, [(0, 4)]),
        ([], 2, []),
    ],
)
def test_optimizer_steps_take_whole_groups(sizes: list[int], parts: int, shares: list[tuple[int, int]]) -> None:
    assert [(share.start, share.stop) for share in split_groups(sizes, parts)] == shares


def test_settings_change_at_a_phases_first_step_CRL_T4() -> None:
    stage = toy.rl_stage(
        phases=[
            {"from_step": 3, "prompts_per_rollout": 2, "response_budget_tokens": 9, "kl_coef": 0.5},
            {"from_step": 5, "kl_coef": 0.0},
        ]
    )
    seen = [
        (now.rollout.prompts_per_rollout, now.rollout.response_budget_tokens, now.algorithm.kl_coef)
        for now in (at_step(stage, step) for step in range(1, 7))
    ]
    assert seen == [(4, 6, 0.0)] * 2 + [(2, 9, 0.5)] * 2 + [(2, 9, 0.0)] * 2


def test_training_goes_through_its_phases_CRL_T4(policy: Policy) -> None:
    """A reference is kept also for a phase in the middle."""
    phases = [
        {"from_step": 2, "prompts_per_rollout": 2, "response_budget_tokens": 3, "kl_coef": 0.5},
        {"from_step": 3, "kl_coef": 0.0},
    ]
    rows, issued = toy.run_rl(policy, toy.rl_stage(phases=phases, run={"steps": 3}))
    assert [row["rollouts/issued"] for row in rows] == [32, 16, 16]
    assert ["ref_kl" in row for row in rows] == [False, True, False]
    assert max(t.episode.num_response_tokens for t in issued[:32]) > 3
    assert max(t.episode.num_response_tokens for t in issued[32:]) == 3


def test_the_kl_reference_is_the_stages_first_policy(policy: Policy) -> None:
    first = toy.copy_of(policy).model
    snapshots: list[PreTrainedModel] = []
    stage = toy.rl_stage(algorithm={"kl_coef": 0.01}, run={"steps": 2, "checkpoint_interval_steps": 1})
    rows, issued = toy.run_rl(policy, stage, save=lambda step: snapshots.append(toy.copy_of(policy).model))
    assert rows[0]["ref_kl"] == pytest.approx(0, abs=1e-9)
    with torch.no_grad():
        values = []
        for t in issued[32:]:
            ratio = reference.logprobs(snapshots[0], t.token_ids) - reference.logprobs(first, t.token_ids)
            values.append(_sampled(t, torch.expm1(-ratio) + ratio))
    assert rows[1]["ref_kl"] == pytest.approx(torch.cat(values).mean().item(), abs=1e-5)
    assert rows[1]["ref_kl"] > 1e-4


def test_it_learns_a_toy_problem(policy: Policy) -> None:
    rows, _ = toy.run_rl(policy, toy.rl_stage(run={"steps": 12}))
    assert rows[0]["reward"] < 0.5
    assert rows[-1]["reward"] > 0.9


def test_two_runs_are_equal_bit_for_bit(policy: Policy) -> None:
    stage = toy.rl_stage(run={"steps": 3}, rollout={"opt_steps_per_rollout": 2})
    runs = []
    for _ in range(2):
        twin = toy.copy_of(policy)
        rows, issued = toy.run_rl(twin, stage, seed=4)
        logged = [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in rows]
        runs.append((logged, [(t.token_ids, t.logprobs) for t in issued], twin.model))
    assert runs[0][:2] == runs[1][:2]
    assert reference.largest_difference(_by_name(runs[0][2]), runs[1][2]) == 0.0
    _, others = toy.run_rl(toy.copy_of(policy), stage, seed=5)
    assert [t.token_ids for t in others] != [ids for ids, _ in runs[0][1]]


def _always(verdict: Verdict) -> Callable[[Episode], Verdict]:
    return lambda episode: verdict


@pytest.mark.parametrize(
    ("verdict", "aborted"), [(Verdict.aborted("down"), 96), (Verdict.binary(True), 0), (Verdict.binary(False), 0)]
)
def test_a_batch_without_signal_takes_no_step_and_is_counted(policy: Policy, verdict: Verdict, aborted: int) -> None:
    """Neither an outage nor equal rewards move the weights, also not by weight decay."""
    before = toy.copy_of(policy).model
    stage = toy.rl_stage(optimizer={"lr_peak": 0.1, "weight_decay": 0.5}, rollout={"opt_steps_per_rollout": 2})
    rows, _ = toy.run_rl(policy, stage, SingleTurnGym(_always(verdict)))
    assert rows[0]["skipped_updates"] == 2
    assert rows[0]["rollouts/aborted"] == aborted
    assert reference.largest_difference(_by_name(before), policy.model) == 0.0


def test_an_all_masked_batch_takes_no_step() -> None:
    """Every response is truncated, and rewards differ."""
    policy = toy.toy_policy()
    before = toy.copy_of(policy).model
    stage = toy.rl_stage(algorithm={"truncation_masking": True, "kl_coef": 0.1}, rollout={"response_budget_tokens": 1})
    verdicts = iter([Verdict.binary(True), Verdict.binary(False)] * 16)
    rows, issued = toy.run_rl(policy, stage, SingleTurnGym(lambda episode: next(verdicts)))
    assert all(t.truncated for t in issued)
    assert rows[0]["skipped_updates"] == 1
    assert rows[0]["truncation_ratio"] == 1
    assert reference.largest_difference(_by_name(before), policy.model) == 0.0


def test_what_is_short_is_in_the_metrics(policy: Policy) -> None:
    window = {"low_exclusive": 0.0, "high_exclusive": 1.0, "max_rounds": 2}
    gym = SingleTurnGym(_always(Verdict.binary(True)))
    rows, issued = toy.run_rl(policy, toy.rl_stage(dynamic_sampling=window), gym)
    assert rows[0]["rollouts/short_groups"] == 4
    assert rows[0]["rollouts/rounds"] == 2
    assert rows[0]["rollouts/issued"] == rows[0]["rollouts/filtered"] == len(issued) == 64


def test_a_problem_whose_prompt_leaves_no_room_is_left_out_and_counted(policy: Policy) -> None:
    """Such a rollout could never be scored: with refills the step would crawl through the long ones."""
    long = [toy.problem("Ann " * 300 + name) for name in toy.NAMES]
    rows, issued = toy.run_rl(policy, toy.rl_stage(), problems=[*long, *toy.PROBLEMS])
    assert {t.problem_id for t in issued} == {problem.id for problem in toy.PROBLEMS}
    assert rows[0]["problems_without_room"] == 4
    assert rows[0]["rollouts/aborted"] == 0
    with pytest.raises(DataError, match="no prompt leaves room for an answer within 256 tokens"):
        toy.run_rl(policy, toy.rl_stage(), problems=long)


def test_two_groups_of_one_problem_in_a_step_differ(policy: Policy) -> None:
    """One problem fills a batch of four groups, and refills: each draws afresh."""
    window = {"low_exclusive": 0.0, "high_exclusive": 1.0, "max_rounds": 2}
    stage = toy.rl_stage(dynamic_sampling=window)
    _, issued = toy.run_rl(policy, stage, SingleTurnGym(_always(Verdict.binary(True))), toy.PROBLEMS[:1])
    groups = [tuple(tuple(t.token_ids) for t in issued[k : k + 8]) for k in range(0, len(issued), 8)]
    assert len(groups) == 8
    assert len(set(groups)) == 8


class _LastFinishesFirst:
    """A verdict that waits until all are asked for one, and is then given in the reverse order."""

    def __init__(self, count: int) -> None:
        self.arrived, self.next, self.turn = 0, count - 1, threading.Condition()

    def __call__(self, episode: Episode) -> Verdict:
        with self.turn:
            ticket, self.arrived = self.arrived, self.arrived + 1
            self.turn.notify_all()
            assert self.turn.wait_for(lambda: self.arrived > self.next and ticket == self.next, timeout=60)
            self.next -= 1
            self.turn.notify_all()
        return Verdict.binary(episode.final_text == "red")


def test_which_groups_are_kept_does_not_depend_on_which_finished_first(policy: Policy) -> None:
    window = {"low_exclusive": 0.0, "high_exclusive": 1.0, "oversample_factor": 2.0, "max_rounds": 1}
    stage = toy.rl_stage(rollout={"prompts_per_rollout": 2, "samples_per_prompt": 4}, dynamic_sampling=window)
    runs = []
    for gym, workers in ((toy.colour_gym(), 1), (SingleTurnGym(_LastFinishesFirst(16)), 16)):
        twin = toy.copy_of(policy)
        rows, issued = toy.run_rl(twin, stage, gym, workers=workers)
        assert rows[0]["rollouts/trained"] > 0
        runs.append((twin.model, [(t.token_ids, t.reward) for t in issued], rows[0]["rollouts/trained"]))
    assert runs[0][1:] == runs[1][1:]
    assert reference.largest_difference(_by_name(runs[0][0]), runs[1][0]) == 0.0


def test_rollouts_carry_the_version_of_their_weights(policy: Policy) -> None:
    _, issued = toy.run_rl(policy, toy.rl_stage(run={"steps": 2}))
    assert [t.weight_version for t in issued] == ["0"] * 32 + ["1"] * 32


def test_checkpoints_at_the_interval_and_at_the_end(policy: Policy) -> None:
    saved: list[int] = []
    toy.run_rl(policy, toy.rl_stage(run={"steps": 5, "checkpoint_interval_steps": 2}), save=saved.append)
    assert saved == [2, 4, 5]


# A diagnostic on prompts that are never trained on


def test_every_few_steps_the_reward_on_other_prompts_is_logged_and_nothing_changes_RM_T2() -> None:
    stage = toy.rl_stage(run={"steps": 7})
    plain, watched = (toy.copy_of(toy.speaking_policy()) for _ in range(2))
    rows, issued = toy.run_rl(plain, stage)
    seen: list[Episode] = []

    def verify(episode: Episode) -> Verdict:
        if episode.problem.source == "other":
            seen.append(episode)
            return Verdict.scored(2.5, True) if len(seen) % 2 else Verdict.aborted("the reward model is gone")
        return Verdict.binary(episode.final_text == "red")

    others = [each.model_copy(update={"source": "other"}) for each in toy.PROBLEMS]
    watched_rows, watched_issued = toy.run_rl(
        watched, stage, SingleTurnGym(verify), diagnostic=Diagnostic(others, interval_steps=3)
    )
    assert [step for step, row in enumerate(watched_rows, 1) if "diagnostic/reward" in row] == [3, 6]
    assert [watched_rows[step - 1]["diagnostic/reward"] for step in (3, 6)] == [2.5, 2.5]
    assert [watched_rows[step - 1]["diagnostic/unscored"] for step in (3, 6)] == [2, 2]
    assert watched_rows[2]["diagnostic/final_response_tokens"] > 0
    assert len(seen) == 2 * len(others)
    assert all(t.episode.problem.source != "other" for t in watched_issued)
    assert [t.token_ids for t in watched_issued] == [t.token_ids for t in issued]
    assert [
        {k: v for k, v in row.items() if not k.startswith("diagnostic/") and not k.endswith("seconds")}
        for row in watched_rows
    ] == [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in rows]
    for name, weight in _by_name(plain.model).items():
        assert torch.equal(weight, watched.model.get_parameter(name)), name
