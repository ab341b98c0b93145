"""Clipped policy-gradient losses over packed rows.

Shapes: T tokens of any number of packed rows laid end to end; S sequences. `sequence_T` names the sequence a token
belongs to, so padding, prompts and observations need no layout of their own: their mask is 0. A sequence may not
be cut across two calls. Log-probs are natural logarithms at the rollout's temperature.

    new      the policy being trained (carries the gradient)
    old      the policy at the start of the rollout's optimizer steps, recomputed by the trainer
    rollout  the policy as the rollout engine computed it
    ref      the reference policy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rufus_core.settings import AlgorithmSettings

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class LossOutput:
    """`loss` sums to the optimizer batch's loss over its micro-batches; `metrics` are means over `num_tokens`."""

    loss: Tensor
    num_tokens: int  # trained tokens; 0 over a whole optimizer batch means: take no step
    metrics: dict[str, float]


def policy_loss(
    new_T: Tensor,
    old_T: Tensor,
    rollout_T: Tensor,
    sequence_T: Tensor,
    advantages_S: Tensor,
    mask_T: Tensor,
    *,
    denominator: float,
    settings: AlgorithmSettings,
    ref_T: Tensor | None = None,
    entropy_T: Tensor | None = None,
) -> LossOutput:
    """The loss of one micro-batch, as its share of the optimizer batch whose `loss_denominator` is given.

    GRPO takes the ratio of each token (SA-T1), GSPO one ratio for each sequence, the exponential of its mean
    log-ratio (RRL-T1; arXiv:2507.18071, eq. 7). Both clip it to [1 - clip_low, 1 + clip_high] and keep the smaller
    objective. Truncated importance weights min(exp(old - rollout), cap) carry no gradient and multiply after clipping
    (SLM-09). The KL term is k3 towards `ref`. What is masked may hold any value, also NaN; a NaN on a trained token
    reaches the loss. With every token masked the loss is 0 and so are its gradients.

    Metrics: `ratio`, `clip_fraction` (share of tokens whose clipped objective was taken), `policy_kl` (k3 of new from
    old), `logprob_gap` (how far old and rollout differ); with TIS also `tis_weight`, with a reference `ref_kl`, with
    entropies `entropy`.

    Raises:
        ValueError: a coefficient is set whose tensor is missing, or the denominator is not positive.
    """
    if settings.kl_coef and ref_T is None:
        raise ValueError("kl_coef is set, but no reference log-probs are given")
    if settings.entropy_coef and entropy_T is None:
        raise ValueError("entropy_coef is set, but no entropies are given")
    if denominator <= 0:
        raise ValueError(f"the denominator must be positive, not {denominator}")

    mask_T = mask_T.bool()
    new_T = _at_least_float32(new_T)
    num_tokens_S = _sum_by_sequence(mask_T.to(new_T.dtype), sequence_T, len(advantages_S))

    def masked(values_T: Tensor) -> Tensor:
        return torch.where(mask_T, values_T, 0.0)

    log_ratio_T = masked(new_T - old_T)
    mismatch_T = masked(old_T - rollout_T)
    if settings.name == "gspo":
        mean_S = _sum_by_sequence(log_ratio_T, sequence_T, len(advantages_S)) / num_tokens_S.clamp(min=1)
        ratio_T = _bounded_exp(mean_S)[sequence_T]
    else:
        ratio_T = _bounded_exp(log_ratio_T)

    # from here on a masked token's share of the loss is 0
    advantages_T = masked(advantages_S.to(new_T.dtype)[sequence_T])
    plain_T = ratio_T * advantages_T
    clipped_T = ratio_T.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantages_T
    loss_T = -torch.minimum(plain_T, clipped_T)
    reported = {
        "ratio": ratio_T,
        "clip_fraction": (clipped_T < plain_T).to(new_T.dtype),
        "policy_kl": kl_divergence(log_ratio_T, "k3"),
        "logprob_gap": mismatch_T.abs(),
    }

    if settings.tis:
        weight_T = _bounded_exp(mismatch_T).clamp(max=settings.tis_cap).detach()
        loss_T = loss_T * weight_T
        reported["tis_weight"] = weight_T
    if ref_T is not None:
        reported["ref_kl"] = kl_divergence(masked(new_T - ref_T), "k3")
        loss_T = loss_T + settings.kl_coef * reported["ref_kl"]
    if entropy_T is not None:
        reported["entropy"] = masked(entropy_T)
        loss_T = loss_T - settings.entropy_coef * reported["entropy"]

    if settings.length_normalization == "per_sequence":
        loss_T = loss_T / num_tokens_S.clamp(min=1)[sequence_T]
    return LossOutput(
        loss=loss_T.sum() / denominator,
        num_tokens=int(mask_T.sum()),
        metrics=_token_means(reported, mask_T),
    )


def loss_denominator(num_tokens_S: Sequence[int], settings: AlgorithmSettings) -> int:
    """What an optimizer batch's loss is divided by, from the trained tokens of each of its sequences.

    `per_sequence`: the number of sequences. A fully masked one counts, so a batch in which many responses are
    truncated gives less gradient (SLM-08). `per_token`: the number of trained tokens. At least 1.
    """
    count = len(num_tokens_S) if settings.length_normalization == "per_sequence" else sum(num_tokens_S)
    return max(1, count)


def kl_divergence(log_ratio_T: Tensor, kind: Literal["k1", "k2", "k3"]) -> Tensor:
    """Per-token estimates of KL(policy || other) from log(policy / other) on the policy's samples.

    k1 = x is unbiased, k2 = x^2 / 2 has a small bias and low variance, k3 = exp(-x) - 1 + x is unbiased and never
    negative (J. Schulman, "Approximating KL divergence", 2020). The log-ratio is bounded before it is used.
    """
    x_T = log_ratio_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if kind == "k1":
        return x_T
    if kind == "k2":
        return x_T.square() / 2
    return torch.expm1(-x_T) + x_T


def merge_metrics(outputs: Sequence[LossOutput]) -> dict[str, float]:
    """Metrics of an optimizer batch from those of its micro-batches: token means again; empty without tokens."""
    trained = [output for output in outputs if output.num_tokens]
    num_tokens = sum(output.num_tokens for output in trained)
    names = trained[0].metrics if trained else {}
    return {name: sum(o.metrics[name] * o.num_tokens for o in trained) / num_tokens for name in names}


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _sum_by_sequence(values_T: Tensor, sequence_T: Tensor, num_sequences: int) -> Tensor:
    return values_T.new_zeros(num_sequences).index_add(0, sequence_T, values_T)


def _bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp without overflow; NaN stays NaN."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _token_means(reported: dict[str, Tensor], mask_T: Tensor) -> dict[str, float]:
    if not mask_T.any():
        return {}
    means = torch.stack([values_T.detach()[mask_T].double().mean() for values_T in reported.values()])
    return dict(zip(reported, means.tolist(), strict=True))
