"""The loss against docs/algorithms.md written out token by token in plain Python, and gradients worked by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rufus_core.algorithms.advantages import group_advantages
from rufus_core.algorithms.losses import kl_divergence, loss_denominator, policy_loss
from rufus_core.settings import AlgorithmSettings

torch.set_num_threads(1)
GRPO = AlgorithmSettings(name="grpo", clip_low=0.2, clip_high=0.28)
GSPO = AlgorithmSettings(name="gspo", clip_low=1e-3, clip_high=2e-3)
TENSORS = ("new", "old", "rollout", "ref", "entropy")


def changed(settings, **changes):
    return settings.model_copy(update=changes)


def bounded(log_ratio):
    return max(-20.0, min(20.0, log_ratio))


def k3(log_ratio):
    return math.exp(-bounded(log_ratio)) - 1 + bounded(log_ratio)


def written_out(sequences, advantages, settings):
    """Of sequences of tokens, each a dict of its values and `mask`. Masked values are never looked at."""
    per_sequence, tokens = settings.length_normalization == "per_sequence", 0
    total = 0.0
    for sequence, advantage in zip(sequences, advantages, strict=True):
        trained = [token for token in sequence if token["mask"]]
        if not trained:
            continue
        mean = sum(t["new"] - t["old"] for t in trained) / len(trained)
        of_sequence = 0.0
        for t in trained:
            ratio = math.exp(bounded(mean if settings.name == "gspo" else t["new"] - t["old"]))
            clipped = max(1 - settings.clip_low, min(1 + settings.clip_high, ratio))
            loss = -min(ratio * advantage, clipped * advantage)
            if settings.tis:
                loss *= min(math.exp(bounded(t["old"] - t["rollout"])), settings.tis_cap)
            of_sequence += loss + settings.kl_coef * k3(t["new"] - t["ref"]) - settings.entropy_coef * t["entropy"]
        total += of_sequence / len(trained) if per_sequence else of_sequence
        tokens += len(trained)
    return total / max(1, len(sequences) if per_sequence else tokens)


def computed(sequences, advantages, settings, new=None):
    flat = [token for sequence in sequences for token in sequence]
    tensors = {name: torch.tensor([t[name] for t in flat], dtype=torch.float64) for name in TENSORS}
    return policy_loss(
        tensors["new"] if new is None else new,
        tensors["old"],
        tensors["rollout"],
        torch.tensor([s for s, sequence in enumerate(sequences) for _ in sequence], dtype=torch.long),
        torch.tensor(advantages, dtype=torch.float64),
        torch.tensor([t["mask"] for t in flat], dtype=torch.bool),
        denominator=loss_denominator([sum(t["mask"] for t in sequence) for sequence in sequences], settings),
        settings=settings,
        ref_T=tensors["ref"],
        entropy_T=tensors["entropy"],
    )


log_probs = st.floats(-3, 0) | st.sampled_from([-1e4, -50.0, -20.0, 0.0])
anything = st.floats() | st.just(math.nan)
trained_token = st.fixed_dictionaries(dict.fromkeys(TENSORS, log_probs) | {"mask": st.just(True)})
masked_token = st.fixed_dictionaries(dict.fromkeys(TENSORS, anything) | {"mask": st.just(False)})
batches = st.lists(st.lists(trained_token | masked_token, min_size=1, max_size=6), min_size=1, max_size=6)
algorithms = st.builds(
    changed,
    st.sampled_from([GRPO, GSPO, changed(GSPO, clip_low=0.2, clip_high=0.3)]),
    length_normalization=st.sampled_from(["per_sequence", "per_token"]),
    tis=st.booleans(),
    kl_coef=st.sampled_from([0.0, 1e-3]),
    entropy_coef=st.sampled_from([0.0, 0.01]),
)


@hypothesis_settings(max_examples=200, deadline=None)
@given(sequences=batches, settings=algorithms, data=st.data())
def test_the_loss_is_what_the_formulas_say(sequences, settings, data):
    """Uneven sequences, empty masks, anything in masked places, log-ratios of 10,000, advantages of 0."""
    advantages = [
        data.draw(st.floats(-4, 4) | st.just(0.0) if any(t["mask"] for t in sequence) else anything)
        for sequence in sequences
    ]
    out = computed(sequences, advantages, settings)
    assert out.loss.item() == pytest.approx(written_out(sequences, advantages, settings), rel=1e-12, abs=1e-12)
    assert out.num_tokens == sum(t["mask"] for sequence in sequences for t in sequence)


@hypothesis_settings(max_examples=100, deadline=None)
@given(sequences=batches, settings=algorithms, data=st.data())
def test_gradients_are_finite_and_zero_where_masked(sequences, settings, data):
    advantages = data.draw(st.lists(st.floats(-4, 4), min_size=len(sequences), max_size=len(sequences)))
    flat = [token for sequence in sequences for token in sequence]
    new = torch.tensor([t["new"] for t in flat], dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(computed(sequences, advantages, settings, new).loss, new)
    assert torch.isfinite(gradient).all()
    assert (gradient[[not t["mask"] for t in flat]] == 0).all()


def tokens(log_ratios, mask=None):
    """Tokens of one sequence with old log-probs of -1."""
    kept = mask or [True] * len(log_ratios)
    rest = {"old": -1.0, "rollout": -1.0, "ref": -1.0, "entropy": 0.0}
    return [{"new": x - 1.0, "mask": m, **rest} for x, m in zip(log_ratios, kept, strict=True)]


def gradient_of(sequences, advantages, settings):
    flat = [token for sequence in sequences for token in sequence]
    new = torch.tensor([t["new"] for t in flat], dtype=torch.float64).requires_grad_()
    return torch.autograd.grad(computed(sequences, advantages, settings, new).loss, new)[0].tolist()


def test_a_tokens_gradient_is_minus_its_ratio_times_advantage_and_0_where_clipped():
    """One sequence of four tokens, A = 2: -2 * ratio / 4; the clipped third has none, the fourth isn't clipped."""
    log_ratios = [0.0, math.log(1.2), math.log(1.5), math.log(0.5)]
    expected = [-0.5, -0.6, 0.0, -0.25]
    assert gradient_of([tokens(log_ratios)], [2.0], GRPO) == pytest.approx(expected, abs=1e-12)


def test_gspos_tokens_share_the_gradient_of_their_sequence():
    """arXiv:2507.18071, eq. 10: each token gets -s * A / |y|, whatever its own ratio; all of them 0 once s is clipped.

    s = exp(mean of (0.3, -0.298)) = exp(0.001) lies in [0.999, 1.002]; exp(0.01) doesn't. Two sequences: each halved.
    """
    inside, clipped = tokens([0.3, -0.298]), tokens([0.3, -0.28])
    share = -math.exp(0.001) * 2.0 / 2 / 2
    assert gradient_of([inside, clipped], [2.0, 2.0], GSPO) == pytest.approx([share, share, 0.0, 0.0], abs=1e-12)


def test_mean_only_with_per_sequence_normalisation_weighs_long_and_short_alike_SA_T1():
    """Rewards 1, 0, 0, 0 over 100, 1, 4 and 2 tokens: A = 0.75 and -0.25, a token's gradient -A / length / 4."""
    lengths = [100, 1, 4, 2]
    advantages = group_advantages([1.0, 0.0, 0.0, 0.0], ["q"] * 4, "mean_only").tolist()
    sequences = [tokens([0.0] * length) for length in lengths]
    expected = [-0.75 / 100 / 4] * 100 + [0.25 / 4] + [0.25 / 4 / 4] * 4 + [0.25 / 2 / 4] * 2
    assert gradient_of(sequences, advantages, GRPO) == pytest.approx(expected, abs=1e-14)
    assert computed(sequences, advantages, GRPO).loss.item() == pytest.approx(0.0, abs=1e-14)


def test_a_truncated_sequence_has_no_gradient_but_a_share_of_the_denominator_RRL_T5_SLM_08():
    """Of three sequences one is masked: the others' tokens have -1/3 in all, not -1/2. Per token it counts nothing."""
    sequences = [tokens([0.0]), tokens([0.0, 0.0], [False, False]), tokens([0.0, 0.0])]
    assert gradient_of(sequences, [1.0] * 3, GRPO) == pytest.approx([-1 / 3, 0.0, 0.0, -1 / 6, -1 / 6], abs=1e-15)
    per_token = changed(GRPO, length_normalization="per_token")
    assert gradient_of(sequences, [1.0] * 3, per_token) == pytest.approx([-1 / 3, 0.0, 0.0, -1 / 3, -1 / 3], abs=1e-15)


def test_truncated_weights_have_a_cap_and_no_floor_SLM_09():
    """Weights exp(-3), 1 and min(exp(3), 2), on both signs of A and on the k3 term not at all."""
    for advantage in (1.0, -1.0):
        sequence = tokens([0.0, 0.0, 0.0])
        for token, difference in zip(sequence, (-3.0, 0.0, 3.0), strict=True):
            token["rollout"] = token["old"] - difference
            token["ref"] = token["new"] - 0.5
        settings = changed(GRPO, tis=True, kl_coef=0.1)
        expected = -advantage * (math.exp(-3) + 1 + 2) / 3 + 0.1 * (math.exp(-0.5) - 0.5)
        assert computed([sequence], [advantage], settings).loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("new", GRPO),
        ("old", GSPO),
        ("rollout", changed(GRPO, tis=True)),
        ("ref", changed(GSPO, kl_coef=0.1)),
        ("entropy", changed(GRPO, entropy_coef=0.1)),
    ],
)
def test_a_nan_on_a_trained_token_is_seen_whichever_tensor_it_is_in(name, settings):
    sequence = tokens([0.0, 0.0])
    sequence[1][name] = math.nan
    assert math.isnan(computed([sequence], [1.0], settings).loss.item())


def test_a_nan_advantage_of_a_trained_sequence_is_seen():
    assert math.isnan(computed([tokens([0.0])], [math.nan], GRPO).loss.item())


distributions = st.lists(st.floats(0.05, 1.0), min_size=4, max_size=4)


@given(distributions, distributions)
def test_k1_and_k3_are_unbiased_and_k2_is_close(policy, other):
    """Their means over the policy's own draws, exactly: KL for k1 and k3; k2 has it to second order."""
    p, q = (torch.tensor(weights, dtype=torch.float64) for weights in (policy, other))
    p, q = p / p.sum(), q / q.sum()
    log_ratio = (p / q).log()
    divergence = (p * log_ratio).sum().item()
    assert (p * kl_divergence(log_ratio, "k1")).sum().item() == pytest.approx(divergence, abs=1e-12)
    assert (p * kl_divergence(log_ratio, "k3")).sum().item() == pytest.approx(divergence, abs=1e-12)
    bias = (p * kl_divergence(log_ratio, "k2")).sum().item() - divergence
    assert abs(bias) <= (p * log_ratio.abs() ** 3 * log_ratio.abs().exp()).sum().item() / 6 + 1e-12
    assert (kl_divergence(log_ratio, "k3") >= 0).all()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("extreme", [1e4, -1e4, math.inf, -math.inf])
def test_estimators_are_bounded(kind, extreme):
    x = torch.tensor([extreme], dtype=torch.float64).requires_grad_()
    value = kl_divergence(x, kind)
    assert value.item() == kl_divergence(torch.tensor([math.copysign(20.0, extreme)], dtype=torch.float64), kind).item()
    assert torch.isfinite(torch.autograd.grad(value.sum(), x)[0]).all()
