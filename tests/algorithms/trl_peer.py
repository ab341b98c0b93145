"""TRL's own GRPOTrainer as a peer: its losses and gradients as it computes them, only observed.

Shapes: B completions, C positions of the longest one, padded on the right as TRL has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, TrainerCallback

from rufus_core.settings import AlgorithmSettings
from tests.training import toy

trl = pytest.importorskip("trl", minversion="1.16")
datasets = pytest.importorskip("datasets")

PROMPTS = ("first", "second")
Rollout = Callable[[Sequence[str]], dict[str, Any]]


class GivenLogProbs(nn.Module):
    """Stands where the model stands and says the log-probs it was given, in float64: what is left is TRL's loss."""

    def __init__(self, logprobs_BC: Tensor, entropy_BC: Tensor) -> None:
        super().__init__()
        self.logprobs_BC, self.entropy_BC = nn.Parameter(logprobs_BC.clone()), entropy_BC

    def forward(self, **kwargs: Any) -> Any:
        return trl.trainer.utils.FusedCausalLMOutput(log_probs=self.logprobs_BC, entropy=self.entropy_BC)


@dataclass
class Step:
    """One optimizer step of TRL's: what went in, and what came out."""

    inputs: list[dict[str, Tensor]]  # of its micro-batches
    loss: float
    weights: dict[str, Tensor]  # before the step
    gradients: dict[str, Tensor]


class Observed(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
    """Keeps every micro-batch and its loss."""

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().compute_loss(model, inputs, *args, **kwargs)
        self.micro_batches = [*getattr(self, "micro_batches", []), (inputs, loss.item())]
        return loss


class _KeepSteps(TrainerCallback):
    def __init__(self, trainer: Observed) -> None:
        self.trainer, self.steps = trainer, list[Step]()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        micro_batches, self.trainer.micro_batches = self.trainer.micro_batches, []
        named = dict(model.named_parameters())
        self.steps.append(
            Step(
                [inputs for inputs, _ in micro_batches],
                sum(loss for _, loss in micro_batches),
                {name: w.detach().clone() for name, w in model.state_dict().items()},
                {name: w.grad.clone() for name, w in named.items() if w.grad is not None},
            )
        )


def theirs(settings: AlgorithmSettings) -> dict[str, Any]:
    """TRL's configuration of the same algorithm, without an entropy bonus, which is another one than ours."""
    return {
        "loss_type": "grpo" if settings.length_normalization == "per_sequence" else "dapo",
        "importance_sampling_level": "sequence" if settings.name == "gspo" else "token",
        "epsilon": settings.clip_low,
        "epsilon_high": settings.clip_high,
        "scale_rewards": "group" if settings.advantage == "group_normalised" else "none",
        "beta": settings.kl_coef,
        "use_bias_correction_kl": False,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": settings.tis_cap,
        "mask_truncated_completions": settings.truncation_masking,
    }


def save_miniature(folder: Path) -> None:
    """A miniature of GLM-4.5-Air with random weights, in float64."""
    toy.toy_policy().model.double().save_pretrained(folder)


def miniature(folder: Path) -> PreTrainedModel:
    """The one saved there. Only the eager experts know float64."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager")


def trainer(
    folder: Path,
    settings: AlgorithmSettings,
    rollout: Rollout | None = None,
    rewards: Mapping[tuple[int, ...], float | None] | None = None,
    **config: Any,
) -> Observed:
    """It trains the miniature; completions come from `rollout`, a function of the prompts, and rewards from a table."""
    defaults = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "gradient_checkpointing": False,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "max_steps": 1,
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "model_init_kwargs": {"experts_implementation": "eager"},  # of the reference model
    }
    model = miniature(folder)
    made = Observed(
        model,
        lambda completion_ids, **_: [(rewards or {}).get(tuple(ids)) for ids in completion_ids],
        trl.GRPOConfig(**defaults | theirs(settings) | config),
        datasets.Dataset.from_dict({"prompt": list(PROMPTS)}),
        processing_class=toy.toy_policy().chat.tokenizer,
        rollout_func=None if rollout is None else lambda prompts, _: rollout(prompts),
        optimizers=(torch.optim.SGD(model.parameters(), lr=1.0), None),
    )
    if settings.tis:  # vLLM isn't installed; this is the path of rollouts made by it, on which TRL has these weights
        made.use_vllm = True
        made._last_loaded_step = 0
    made.current_gradient_accumulation_steps = made.args.gradient_accumulation_steps  # as its loop sets it
    model.train()
    return made


def optimizer_steps(made: Observed) -> list[Step]:
    """Run TRL's loop."""
    keep = _KeepSteps(made)
    made.add_callback(keep)
    made.train()
    return keep.steps


def loss_and_gradient(made: Observed, batch: Mapping[str, Tensor], rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """Its loss of rows of a batch of float64 log-probs [B, C], and the gradient with respect to them [B, C]."""
    part = {name: values[rows] for name, values in batch.items()}
    lengths_BC = part["mask"].flip(1).cumsum(1).flip(1).clamp(max=1)  # up to the last trained token
    inputs = {
        "prompt_ids": torch.ones_like(lengths_BC[:, :1]),
        "prompt_mask": torch.ones_like(lengths_BC[:, :1]),
        "completion_ids": torch.ones_like(lengths_BC),
        "completion_mask": lengths_BC,
        "tool_mask": part["mask"],
        "advantages": part["advantages"],
        "num_items_in_batch": batch["mask"].sum(),
        "old_per_token_logps": part["old"],
        "ref_per_token_logps": part["ref"],
        "importance_sampling_ratio": part["weights"],
    }
    model = GivenLogProbs(part["new"], part["entropy"])
    loss = made.compute_loss(model, inputs)
    loss.backward()
    assert model.logprobs_BC.grad is not None
    return loss.detach(), model.logprobs_BC.grad
