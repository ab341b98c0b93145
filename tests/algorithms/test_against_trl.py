"""Ours against TRL 1.16's GRPOTrainer on the same tensors: equal where the conventions are, else by the formula.

Log-probs in float64 go through TRL's loss unchanged, so losses and gradients agree to 1e-9. TRL's advantages, weights
and model head are float32, so what passes through those agrees to 1e-6.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rufus_core.algorithms.advantages import STD_EPS, group_advantages
from rufus_core.algorithms.losses import LossOutput, kl_divergence, loss_denominator, policy_loss
from rufus_core.settings import AlgorithmSettings
from tests.algorithms import trl_peer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:You are using 'rollout_func'")
torch.set_num_threads(1)
Batch = dict[str, Tensor]
TRL_STD_EPS = 1e-4
GRPO = AlgorithmSettings(name="grpo", clip_low=0.2, clip_high=0.28)
GSPO = AlgorithmSettings(name="gspo", clip_low=1e-3, clip_high=2e-3)
PER_TOKEN = {"length_normalization": "per_token"}


def ours(settings: AlgorithmSettings, **changes: Any) -> AlgorithmSettings:
    return settings.model_copy(update=changes)


ALIKE = {
    "grpo": GRPO,
    "grpo, per token": ours(GRPO, **PER_TOKEN),
    "grpo with kl": ours(GRPO, kl_coef=0.3),
    "grpo with tis": ours(GRPO, tis=True),
    "grpo with tis and kl, per token": ours(GRPO, tis=True, kl_coef=0.3, **PER_TOKEN),
    "gspo": GSPO,
    "gspo, per token": ours(GSPO, **PER_TOKEN),
    "gspo with tis and kl": ours(GSPO, tis=True, kl_coef=0.3),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    trl_peer.save_miniature(folder)
    return folder


def batch(seed: int, spread: float = 0.3) -> Batch:
    """Eight completions of 1 to 9 tokens: some tokens are a tool's, one completion is all masked, one has A = 0."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    lengths_B = torch.tensor([9, 1, 5, 7, 2, 9, 3, 4])
    mask_BC = (torch.arange(9) < lengths_B[:, None]).long()
    mask_BC[0, 2:4] = 0
    mask_BC[5] = 0
    old_BC = -draw(8, 9).abs()
    rollout_BC = old_BC + 0.5 * draw(8, 9)
    return {
        "new": old_BC + spread * draw(8, 9),
        "old": old_BC,
        "rollout": rollout_BC,
        "ref": old_BC + 0.5 * draw(8, 9),
        "entropy": draw(8, 9).abs(),
        "weights": (old_BC - rollout_BC).exp().clamp(max=2.0),
        "mask": mask_BC,
        "advantages": draw(8).index_fill(0, torch.tensor([6]), 0.0),
    }


def our_loss(settings: AlgorithmSettings, given: Batch) -> tuple[LossOutput, Tensor]:
    """The loss and its gradient [B, C]."""
    new_BC = given["new"].clone().requires_grad_()
    sequence_BC = torch.arange(len(new_BC))[:, None].expand_as(new_BC)
    out = policy_loss(
        new_BC.flatten(),
        given["old"].flatten(),
        given["rollout"].flatten(),
        sequence_BC.flatten(),
        given["advantages"],
        given["mask"].flatten(),
        denominator=loss_denominator(given["mask"].sum(1).tolist(), settings),
        settings=settings,
        ref_T=given["ref"].flatten() if settings.kl_coef else None,
        entropy_T=given["entropy"].flatten(),
    )
    (gradient_BC,) = torch.autograd.grad(out.loss, new_BC)
    return out, gradient_BC


def assert_equal(found: Tensor, expected: Tensor, relative: float = 1e-9) -> None:
    """Relative to the largest entry: entries near 0 are sums of larger ones."""
    assert expected.abs().max() > 0
    assert (found - expected).abs().max() <= relative * expected.abs().max()


# Alike: the loss and its gradient


@pytest.mark.parametrize("name", ALIKE)
def test_loss_and_gradient_are_equal(folder: Path, name: str) -> None:
    made = trl_peer.trainer(folder, ALIKE[name])
    for seed in range(4):
        given = batch(seed, spread=0.3 if ALIKE[name].name == "grpo" else 0.01)
        loss, gradient = trl_peer.loss_and_gradient(made, given)
        out, our_gradient = our_loss(ALIKE[name], given)
        assert 0 < out.metrics["clip_fraction"] < 1  # both branches of the minimum are taken
        assert_equal(out.loss, loss)
        assert_equal(our_gradient, gradient)


@pytest.mark.parametrize("name", ["grpo", "grpo with tis and kl, per token", "gspo with tis and kl"])
def test_a_batch_cut_into_micro_batches_has_an_equal_loss_and_gradient(folder: Path, name: str) -> None:
    """TRL's bnpo is the exception, below."""
    made = trl_peer.trainer(folder, ALIKE[name], per_device_train_batch_size=4, gradient_accumulation_steps=2)
    given = batch(1)
    parts = [trl_peer.loss_and_gradient(made, given, rows) for rows in (slice(0, 4), slice(4, 8))]
    out, gradient = our_loss(ALIKE[name], given)
    assert_equal(out.loss, sum(loss for loss, _ in parts))
    assert_equal(gradient, torch.cat([part for _, part in parts]))


def test_metrics_of_the_token_ratio_are_equal(folder: Path) -> None:
    settings = ALIKE["grpo with kl"]
    made = trl_peer.trainer(folder, settings)
    trl_peer.loss_and_gradient(made, batch(2))
    out, _ = our_loss(settings, batch(2))
    logged = {name: values[-1] for name, values in made._metrics["train"].items()}
    assert out.metrics["clip_fraction"] == pytest.approx(logged["clip_ratio/region_mean"], rel=1e-6)
    assert out.metrics["ref_kl"] == pytest.approx(logged["kl"], rel=1e-6)
    assert out.metrics["entropy"] == pytest.approx(logged["entropy"], rel=1e-6)


def test_an_all_masked_batch_is_zero_on_both_sides(folder: Path) -> None:
    given = batch(0) | {"mask": torch.zeros(8, 9, dtype=torch.long)}
    for settings in (GRPO, ours(GRPO, **PER_TOKEN), GSPO):
        loss, gradient = trl_peer.loss_and_gradient(trl_peer.trainer(folder, settings), given)
        out, our_gradient = our_loss(settings, given)
        assert out.loss == loss == 0
        assert (our_gradient == 0).all()
        assert (gradient == 0).all()


# Different: by the formula


def test_trl_corrects_the_kl_by_the_ratio_unless_told_otherwise(folder: Path) -> None:
    """Its `use_bias_correction_kl` multiplies k3 by the token's ratio; ours is k3 alone, as in GRPO's paper."""
    made = trl_peer.trainer(folder, ours(GRPO, kl_coef=0.3), use_bias_correction_kl=True)
    given = batch(3)
    loss, gradient = trl_peer.loss_and_gradient(made, given)
    assert trl_peer.trl.GRPOConfig.__dataclass_fields__["use_bias_correction_kl"].default is True
    out, our_gradient = our_loss(GRPO, given)
    new = given["new"].clone().requires_grad_()
    corrected = (new - given["old"]).exp() * kl_divergence(new - given["ref"], "k3")
    mask = given["mask"]
    term = 0.3 * ((corrected * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()
    assert_equal(out.loss + term, loss)
    assert_equal(our_gradient + torch.autograd.grad(term, new)[0], gradient)


def test_trls_entropy_bonus_is_a_mean_over_tokens_whatever_the_loss(folder: Path) -> None:
    """Ours is averaged as the loss is, so the two are equal for a mean over tokens only."""
    given = batch(4)
    mask = given["mask"]
    by_token = (given["entropy"] * mask).sum() / mask.sum()
    by_sequence = ((given["entropy"] * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()
    for plain, ours_has in ((GRPO, by_sequence), (ours(GRPO, **PER_TOKEN), by_token)):
        with_entropy = ours(plain, entropy_coef=0.1)
        loss, _ = trl_peer.loss_and_gradient(trl_peer.trainer(folder, with_entropy, entropy_coef=0.1), given)
        out, _ = our_loss(with_entropy, given)
        assert_equal(out.loss + 0.1 * ours_has, loss + 0.1 * by_token)
    assert abs(by_sequence - by_token) > 1e-3


def test_trls_bnpo_depends_on_the_cut(folder: Path) -> None:
    """It is a mean over each micro-batch's tokens: equal to our `per_token` where there is one, else their mean."""
    settings = ours(GRPO, **PER_TOKEN)
    given = batch(5)
    whole, _ = trl_peer.loss_and_gradient(trl_peer.trainer(folder, settings, loss_type="bnpo"), given)
    assert_equal(our_loss(settings, given)[0].loss, whole)
    made = trl_peer.trainer(
        folder, settings, loss_type="bnpo", per_device_train_batch_size=4, gradient_accumulation_steps=2
    )
    halves = [slice(0, 3), slice(3, 8)]
    cut = sum(trl_peer.loss_and_gradient(made, given, rows)[0] for rows in halves)
    means = [our_loss(settings, {name: values[rows] for name, values in given.items()})[0].loss for rows in halves]
    assert_equal(torch.stack(means).mean(), torch.as_tensor(cut))
    assert abs(cut - whole) > 1e-3


def test_trl_does_not_bound_the_log_ratio(folder: Path) -> None:
    """At 1,000 its ratio is infinite where ours is exp(20)."""
    given = batch(6)
    given["advantages"] = -torch.ones(8, dtype=torch.float64)
    given["new"][1, 0] = given["old"][1, 0] + 1000
    loss, _ = trl_peer.loss_and_gradient(trl_peer.trainer(folder, GRPO), given)
    assert math.isinf(loss)
    bounded = given["new"].clone()
    bounded[1, 0] = given["old"][1, 0] + 20
    expected, _ = trl_peer.loss_and_gradient(trl_peer.trainer(folder, GRPO), given | {"new": bounded})
    assert_equal(our_loss(GRPO, given)[0].loss, expected)


def test_trl_lets_a_masked_nan_through(folder: Path) -> None:
    given = batch(7)
    clean, _ = trl_peer.loss_and_gradient(trl_peer.trainer(folder, GRPO), given)
    given["new"][0, 2] = given["old"][5] = math.nan
    assert not given["mask"][0, 2]
    assert math.isnan(trl_peer.loss_and_gradient(trl_peer.trainer(folder, GRPO), given)[0])
    assert_equal(our_loss(GRPO, given)[0].loss, clean)


def test_trl_counts_clipped_sequences_of_gspo_where_we_count_their_tokens(folder: Path) -> None:
    """A fully masked sequence counts there too, with ratio 1."""
    given = batch(8, spread=0.01)
    made = trl_peer.trainer(folder, GSPO)
    trl_peer.loss_and_gradient(made, given)
    tokens_B = given["mask"].sum(1)
    ratio_B = (((given["new"] - given["old"]) * given["mask"]).sum(1) / tokens_B.clamp(min=1)).exp()
    advantages_B = given["advantages"]
    clipped_B = ((ratio_B > 1.002) & (advantages_B > 0)) | ((ratio_B < 0.999) & (advantages_B < 0))
    assert made._metrics["train"]["clip_ratio/region_mean"][-1] == pytest.approx(clipped_B.double().mean().item())
    out, _ = our_loss(GSPO, given)
    assert out.metrics["clip_fraction"] == pytest.approx((clipped_B * tokens_B).sum().item() / tokens_B.sum().item())
    assert 0 < clipped_B.sum() < 8


# Advantages


def scored(folder: Path, groups: list[list[float | None]], settings: AlgorithmSettings) -> Tensor:
    """TRL's advantages of two groups of rewards."""
    return generated(folder, groups, settings)["advantages"].double()


def generated(
    folder: Path,
    groups: list[list[float | None]],
    settings: AlgorithmSettings,
    logprobs: tuple[float | None, ...] = (-1.0, -1.0, -1.0),
    **config: Any,
) -> dict[str, Tensor]:
    """What TRL makes of completions of three tokens with these rewards, and these log-probs from the rollout."""
    flat = [reward for group in groups for reward in group]
    completions = [[5, 6, 7 + k] for k in range(len(flat))]
    made = trl_peer.trainer(
        folder,
        settings,
        lambda prompts: {
            "prompt_ids": [[3, 4]] * len(prompts),
            "completion_ids": completions,
            "logprobs": [list(logprobs)] * len(prompts),
        },
        {tuple(ids): reward for ids, reward in zip(completions, flat, strict=True)},
        num_generations=len(groups[0]),
        per_device_train_batch_size=len(flat),
        **config,
    )
    prompts = [{"prompt": name} for name, group in zip(trl_peer.PROMPTS, groups, strict=True) for _ in group]
    made_of_them: dict[str, Tensor] = made._generate_and_score_completions(prompts)
    return made_of_them


FIRST, SECOND = [1.0, 0.0, 0.25, 0.0], [-2.0, 3.5, 3.5, 0.1]
IDS = ["a"] * 4 + ["b"] * 4


def test_mean_only_advantages_are_equal_SA_T1(folder: Path) -> None:
    mean_only = ours(GRPO, advantage="mean_only")
    expected = torch.from_numpy(group_advantages(FIRST + SECOND, IDS, "mean_only"))
    assert_equal(scored(folder, [FIRST, SECOND], mean_only), expected, 1e-6)


def test_normalised_advantages_differ_by_the_eps_alone(folder: Path) -> None:
    """TRL adds 1e-4 to the std (ddof = 1) and we 1e-6, as slime and verl do."""
    std = torch.tensor([FIRST, SECOND], dtype=torch.float64).std(1).repeat_interleave(4)
    expected = torch.from_numpy(group_advantages(FIRST + SECOND, IDS)) * (std + STD_EPS) / (std + TRL_STD_EPS)
    assert_equal(scored(folder, [FIRST, SECOND], GRPO), expected, 1e-6)


def test_an_unscored_member_leaves_the_statistics_in_both_CA_R3(folder: Path) -> None:
    """TRL keeps it in the batch, with advantage 0 and a share of the denominator; ours has left before."""
    mean_only = ours(GRPO, advantage="mean_only")
    found = scored(folder, [[1.0, 0.0, 0.0, None], SECOND], mean_only)
    expected = group_advantages([1.0, 0.0, 0.0], ["a"] * 3, "mean_only")
    assert found[:4].tolist() == pytest.approx([*expected.tolist(), 0.0], rel=1e-6)


def test_equal_rewards_leave_a_residue_in_trl(folder: Path) -> None:
    """Seven times 0.95 in float32 is a mean of not quite 0.95, which its eps makes an advantage; ours is exactly 0."""
    found = scored(folder, [[0.95] * 7, [0.3] * 7], GRPO)
    assert found.abs().max() > 1e-4
    assert (group_advantages([0.95] * 7 + [0.3] * 7, ["a"] * 7 + ["b"] * 7) == 0).all()


# Truncated importance weights


def test_trl_weighs_a_token_without_a_log_prob_as_1_where_ours_stays_visible_SLM_09(folder: Path) -> None:
    """The others by min(exp(old - rollout), 2), as ours."""
    found = generated(folder, [FIRST, SECOND], ours(GRPO, tis=True), (-9.0, None, -3.0))
    old = found["old_per_token_logps"].double()
    expected = (old - torch.tensor([-9.0, math.nan, -3.0])).exp().clamp(max=2.0).nan_to_num(1.0)
    assert set(expected[:, 0].tolist()) == {2.0}
    assert (expected[:, 2] < 1).all()
    assert_equal(found["importance_sampling_ratio"].double(), expected, 1e-6)


def test_trls_default_weight_is_of_a_sequence_and_0_above_its_cap(folder: Path) -> None:
    given = {"vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_max": 3.0}
    fields = trl_peer.trl.GRPOConfig.__dataclass_fields__
    assert {name: fields[name].default for name in given} == given
    found = generated(folder, [FIRST, SECOND], ours(GRPO, tis=True), (-6.3, -6.3, -6.3), **given)
    product = (found["old_per_token_logps"].double() + 6.3).sum(1, keepdim=True).exp()
    assert product.min() < 3.0 < product.max()
    assert_equal(found["importance_sampling_ratio"].double(), product.where(product <= 3.0, 0.0), 1e-6)
