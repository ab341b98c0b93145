"""Golden values are worked by hand in float64 from the formulas in `policy_loss`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_core.algorithms.losses import kl_divergence, loss_denominator, merge_metrics, policy_loss
from rufus_core.settings import AlgorithmSettings

torch.set_num_threads(1)
GRPO = AlgorithmSettings(name="grpo", clip_low=0.2, clip_high=0.28)
GSPO = AlgorithmSettings(name="gspo", clip_low=1e-3, clip_high=2e-3)
ALGORITHMS = (
    GRPO,
    GSPO,
    GRPO.model_copy(update={"length_normalization": "per_token"}),
    GSPO.model_copy(update={"tis": True, "kl_coef": 0.1, "entropy_coef": 0.01}),
)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def loss_of(new, old, sequence, advantages, settings, *, rollout=None, mask=None, denominator=1, **rest):
    return policy_loss(
        new,
        old,
        old if rollout is None else rollout,
        torch.tensor(sequence),
        advantages,
        torch.ones(len(sequence)) if mask is None else torch.tensor(mask),
        denominator=denominator,
        settings=settings,
        **rest,
    )


def batch(lengths, seed=0, spread=0.3):
    """Random sequences of these lengths; the first token of each is a prompt token (mask 0)."""
    generator = torch.Generator().manual_seed(seed)
    sequence_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    num_tokens = len(sequence_T)
    draw = lambda n: torch.randn(n, generator=generator, dtype=torch.float64)  # noqa: E731
    old_T = -draw(num_tokens).abs()
    mask_T = torch.ones(num_tokens, dtype=torch.bool)
    mask_T[torch.tensor([0, *lengths[:-1]]).cumsum(0)] = False
    return {
        "new_T": old_T + spread * draw(num_tokens),
        "old_T": old_T,
        "rollout_T": old_T + 0.1 * draw(num_tokens),
        "ref_T": old_T + 0.1 * draw(num_tokens),
        "entropy_T": draw(num_tokens).abs(),
        "sequence_T": sequence_T,
        "mask_T": mask_T,
        "advantages_S": draw(len(lengths)),
    }


def counts(mask_T, sequence_T, num_sequences):
    return [int(mask_T[sequence_T == s].sum()) for s in range(num_sequences)]


# Golden values


def test_ratio_is_one_at_the_first_step():
    """loss = -(1/2)(mean A of tokens, by sequence) = -(2 + (-1)) / 2."""
    old = f64(-1.0, -2.0, -0.5)
    for settings_ in (GRPO, GSPO):
        out = loss_of(old.clone(), old, [0, 0, 1], f64(2.0, -1.0), settings_, denominator=2)
        assert out.loss.item() == pytest.approx(-0.5, abs=1e-12)
        assert out.metrics["ratio"] == 1.0
        assert out.metrics["clip_fraction"] == 0.0
        assert out.metrics["policy_kl"] == 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "clipped"),
    [
        (1.27, 1.0, -1.27, 0.0),
        (1.50, 1.0, -1.28, 1.0),  # above 1 + clip_high
        (0.50, 1.0, -0.50, 0.0),  # the smaller objective is the plain one
        (0.79, -1.0, 0.80, 1.0),  # below 1 - clip_low
        (1.50, -1.0, 1.50, 0.0),
        (1.21, 1.0, -1.21, 0.0),  # the clip is asymmetric
    ],
)
def test_grpo_clips_each_token_asymmetrically(ratio, advantage, expected, clipped):
    out = loss_of(f64(math.log(ratio)), f64(0.0), [0], f64(advantage), GRPO)
    assert out.loss.item() == pytest.approx(expected, abs=1e-12)
    assert out.metrics["clip_fraction"] == clipped


@pytest.mark.parametrize(
    ("log_ratios", "advantage", "expected"),
    [
        ((0.003, -0.001), 2.0, -2 * math.exp(0.001)),  # mean 0.001: inside [0.999, 1.002], though both tokens are not
        ((0.009, -0.001), 2.0, -2 * 1.002),
        ((-0.009, 0.001), -2.0, 2 * 0.999),
        ((-0.009, 0.001), 2.0, -2 * math.exp(-0.004)),
    ],
)
def test_gspo_clips_the_exponential_of_the_mean_log_ratio_RRL_T1(log_ratios, advantage, expected):
    out = loss_of(f64(*log_ratios), f64(0.0, 0.0), [0, 0], f64(advantage), GSPO)
    assert out.loss.item() == pytest.approx(expected, abs=1e-12)


def test_length_normalisation_per_sequence_and_per_token():
    """Sequences of 1 and 3 tokens, ratio 1, A = 1 and -1: (1 - 1) / 2 per sequence, (1 - 3) / 4 per token."""
    old = f64(-1.0, -1.0, -1.0, -1.0)
    per_token = GRPO.model_copy(update={"length_normalization": "per_token"})
    for settings_, expected in ((GRPO, 0.0), (per_token, 0.5)):
        denominator = loss_denominator([1, 3], settings_)
        out = loss_of(old, old, [0, 1, 1, 1], f64(1.0, -1.0), settings_, denominator=denominator)
        assert out.loss.item() == pytest.approx(expected, abs=1e-12)


def test_a_fully_masked_sequence_counts_per_sequence_and_not_per_token_SLM_08():
    assert loss_denominator([3, 0, 5], GRPO) == 3
    assert loss_denominator([3, 0, 5], GRPO.model_copy(update={"length_normalization": "per_token"})) == 8
    assert loss_denominator([0], GRPO.model_copy(update={"length_normalization": "per_token"})) == 1


def test_truncated_importance_weights_multiply_after_clipping_SLM_09():
    """Weights exp(0.5) and min(exp(1.5), 2) on a clipped objective of 1.28 each, mean of two tokens."""
    tis = GRPO.model_copy(update={"tis": True})
    old = f64(-1.0, -1.0)
    out = loss_of(old + math.log(1.5), old, [0, 0], f64(1.0), tis, rollout=f64(-1.5, -2.5))
    assert out.loss.item() == pytest.approx(-1.28 * (math.exp(0.5) + 2.0) / 2, abs=1e-12)
    assert out.metrics["tis_weight"] == pytest.approx((math.exp(0.5) + 2.0) / 2, abs=1e-12)


def test_the_gap_between_rollout_and_trainer_is_a_token_mean_and_changes_no_loss():
    """|-1 + 1.5| and |-1 + 0.75|; what is masked doesn't count."""
    old = f64(-1.0, -1.0, 0.0)
    out, same = (
        loss_of(old, old, [0, 0, 0], f64(1.0), GRPO, rollout=rollout, mask=[True, True, False])
        for rollout in (f64(-1.5, -0.75, math.nan), old)
    )
    assert out.metrics["logprob_gap"] == pytest.approx(0.375, abs=1e-12)
    assert same.metrics["logprob_gap"] == 0
    assert out.loss.item() == same.loss.item()


def test_truncated_importance_weights_carry_no_gradient():
    old, rollout = f64(-1.0).requires_grad_(), f64(-1.5).requires_grad_()
    out = loss_of(
        f64(-1.0).requires_grad_(), old, [0], f64(1.0), GRPO.model_copy(update={"tis": True}), rollout=rollout
    )
    (gradient,) = torch.autograd.grad(out.loss, rollout, allow_unused=True, retain_graph=True)
    assert gradient is None
    assert torch.autograd.grad(out.loss, old)[0].item() == pytest.approx(math.exp(0.5), abs=1e-12)  # through the ratio


def test_kl_estimators():
    x = f64(0.5, -0.5)
    assert kl_divergence(x, "k1").tolist() == [0.5, -0.5]
    assert kl_divergence(x, "k2").tolist() == [0.125, 0.125]
    assert kl_divergence(x, "k3").tolist() == pytest.approx([math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5], abs=1e-15)


def test_k3_is_in_the_loss_SA_T3():
    with_kl = GRPO.model_copy(update={"kl_coef": 1e-3})
    old, ref = f64(-1.0, -2.0), f64(-1.5, -1.5)
    out = loss_of(old, old, [0, 0], f64(0.0), with_kl, ref_T=ref)
    k3 = (math.exp(-0.5) - 1 + 0.5 + math.exp(0.5) - 1 - 0.5) / 2
    assert out.loss.item() == pytest.approx(1e-3 * k3, abs=1e-12)
    assert out.metrics["ref_kl"] == pytest.approx(k3, abs=1e-12)


def test_entropy_is_subtracted():
    out = loss_of(
        f64(-1.0), f64(-1.0), [0], f64(1.0), GRPO.model_copy(update={"entropy_coef": 0.1}), entropy_T=f64(2.0)
    )
    assert out.loss.item() == pytest.approx(-1.0 - 0.1 * 2.0, abs=1e-12)


@pytest.mark.parametrize("field", ["kl_coef", "entropy_coef"])
def test_a_coefficient_without_its_tensor_is_refused(field):
    with pytest.raises(ValueError, match=field):
        loss_of(f64(-1.0), f64(-1.0), [0], f64(1.0), GRPO.model_copy(update={field: 0.1}))


# Gradients


@pytest.mark.parametrize("settings_", ALGORITHMS)
def test_gradients_agree_with_finite_differences(settings_):
    tensors = batch([4, 2, 6], seed=3, spread=0.05)
    new_T = tensors.pop("new_T").requires_grad_()
    assert torch.autograd.gradcheck(
        lambda new: policy_loss(new, **tensors, denominator=3, settings=settings_).loss, (new_T,)
    )


def test_the_gradient_raises_good_tokens_and_lowers_bad_ones():
    new = f64(-1.0, -1.0).requires_grad_()
    loss_of(new, f64(-1.0, -1.0), [0, 1], f64(1.0, -1.0), GRPO, denominator=2).loss.backward()
    assert new.grad.tolist() == [-0.5, 0.5]


# Properties


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 9), min_size=2, max_size=7),
    seed=st.integers(0, 99),
    which=st.sampled_from(ALGORITHMS),
    data=st.data(),
)
def test_loss_gradient_and_metrics_do_not_depend_on_the_cut_into_micro_batches(lengths, seed, which, data):
    tensors = batch(lengths, seed)
    num_sequences = len(lengths)
    denominator = loss_denominator(counts(tensors["mask_T"], tensors["sequence_T"], num_sequences), which)
    new_T = tensors.pop("new_T").requires_grad_()
    whole = policy_loss(new_T, **tensors, denominator=denominator, settings=which)
    (whole_gradient,) = torch.autograd.grad(whole.loss, new_T)

    pieces = data.draw(st.lists(st.integers(0, 2), min_size=num_sequences, max_size=num_sequences))
    outputs = []
    for piece in sorted(set(pieces)):
        kept = torch.tensor([s for s in range(num_sequences) if pieces[s] == piece])
        tokens = torch.isin(tensors["sequence_T"], kept)
        part = {name: values[tokens] for name, values in tensors.items() if name != "advantages_S"}
        part["sequence_T"] = torch.searchsorted(kept, part["sequence_T"])
        outputs.append(
            policy_loss(
                new_T[tokens],
                **part,
                advantages_S=tensors["advantages_S"][kept],
                denominator=denominator,
                settings=which,
            )
        )
    summed = sum(output.loss for output in outputs)
    assert summed.item() == pytest.approx(whole.loss.item(), abs=1e-12)
    assert torch.allclose(torch.autograd.grad(summed, new_T)[0], whole_gradient, atol=1e-12)
    assert merge_metrics(outputs) == pytest.approx(whole.metrics, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), which=st.sampled_from(ALGORITHMS))
def test_loss_does_not_depend_on_the_order_of_tokens_or_sequences(seed, which):
    tensors = batch([3, 5, 2], seed)
    plain = policy_loss(**tensors, denominator=3, settings=which).loss
    order = torch.randperm(10, generator=torch.Generator().manual_seed(seed))
    renamed = torch.tensor([2, 0, 1])
    moved = {name: values[order] for name, values in tensors.items() if name != "advantages_S"}
    moved["sequence_T"] = renamed[moved["sequence_T"]]
    moved["advantages_S"] = tensors["advantages_S"][torch.argsort(renamed)]
    assert policy_loss(**moved, denominator=3, settings=which).loss.item() == pytest.approx(plain.item(), abs=1e-12)


@pytest.mark.parametrize("settings_", ALGORITHMS)
def test_masked_tokens_may_hold_anything(settings_):
    """Also the advantage of a sequence without a trained token."""
    tensors = batch([4, 3, 2], seed=1)
    tensors["mask_T"][-2:] = False
    spoiled = {
        name: values.masked_fill(~tensors["mask_T"], float("nan"))
        if name.endswith("_T") and values.is_floating_point()
        else values
        for name, values in tensors.items()
    }
    spoiled["advantages_S"] = tensors["advantages_S"].index_fill(0, torch.tensor([2]), float("nan"))
    results = []
    for given_ in (tensors, spoiled):
        rest = dict(given_)
        new_T = rest.pop("new_T").clone().requires_grad_()
        out = policy_loss(new_T, **rest, denominator=2, settings=settings_)
        out.loss.backward()
        results.append((out, new_T.grad))
    (clean, clean_gradient), (dirty, dirty_gradient) = results
    assert dirty.loss.item() == clean.loss.item()
    assert dirty.metrics == clean.metrics
    assert dirty_gradient.tolist() == clean_gradient.tolist()
    assert (dirty_gradient[~tensors["mask_T"]] == 0).all()


@pytest.mark.parametrize("settings_", ALGORITHMS)
def test_an_all_masked_batch_is_a_finite_zero(settings_):
    tensors = batch([4, 3]) | {"mask_T": torch.zeros(7, dtype=torch.bool)}
    new_T = tensors.pop("new_T").requires_grad_()
    out = policy_loss(new_T, **tensors, denominator=loss_denominator([0, 0], settings_), settings=settings_)
    out.loss.backward()
    assert out.loss.item() == 0.0
    assert (new_T.grad == 0).all()
    assert out.num_tokens == 0
    assert merge_metrics([out]) == {}


@pytest.mark.parametrize("settings_", ALGORITHMS)
@pytest.mark.parametrize("extreme", [1e4, -1e4, float("-inf")])
def test_extreme_log_ratios_stay_finite(settings_, extreme):
    tensors = batch([4, 3])
    tensors["new_T"] = tensors["new_T"].float().index_fill(0, torch.tensor([2]), extreme).requires_grad_()
    out = policy_loss(**tensors, denominator=2, settings=settings_)
    out.loss.backward()
    assert math.isfinite(out.loss.item())
    assert torch.isfinite(tensors["new_T"].grad).all()


@pytest.mark.parametrize("settings_", ALGORITHMS)
def test_a_nan_on_a_trained_token_stays_visible(settings_):
    tensors = batch([4, 3])
    tensors["new_T"][2] = float("nan")
    assert math.isnan(policy_loss(**tensors, denominator=2, settings=settings_).loss.item())


def test_bfloat16_is_raised_to_float32():
    old = torch.tensor([-1.0, -2.0])
    out = loss_of(old.bfloat16(), old, [0, 0], torch.tensor([1.0]), GRPO)
    assert out.loss.dtype == torch.float32


def test_a_denominator_of_zero_is_refused():
    with pytest.raises(ValueError, match="denominator"):
        loss_of(f64(-1.0), f64(-1.0), [0], f64(1.0), GRPO, denominator=0)
