"""AdamW by Megatron-core, as `rufus_core.training.optimizer` has it for one machine."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

from rufus_core.settings import OptimizerSettings

_SHARDING = "fully_reshardable"  # of a distributed optimizer's state


class Optimizer:
    """Weights and gradients of a model that is cut over ranks, all of which call every method."""

    def __init__(
        self, model: DistributedDataParallel, settings: OptimizerSettings, dtype: torch.dtype, distributed: bool
    ) -> None:
        self._model = model
        self._config = OptimizerConfig(
            optimizer="adam",
            lr=settings.lr_peak,
            weight_decay=settings.weight_decay,
            adam_beta1=settings.betas[0],
            adam_beta2=settings.betas[1],
            adam_eps=settings.eps,
            clip_grad=settings.grad_clip,
            bf16=dtype is torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=distributed,
        )
        self.megatron = get_megatron_optimizer(self._config, [model])
        for group in self.megatron.param_groups:  # Megatron's own scheduler would do this
            group["weight_decay"] = settings.weight_decay * group.get("wd_mult", 1.0)

    def step(self, lr: float, grad_clip: float) -> float:
        """Sum the ranks' gradients, clip, step and clear. Returns the norm before clipping."""
        finalize_model_grads([self._model])
        self._config.clip_grad = grad_clip
        for group in self.megatron.param_groups:
            group["lr"] = lr
        _, norm, _ = self.megatron.step()
        self.clear()
        return float(norm)

    def clear(self) -> None:
        self._model.zero_grad_buffer()
        self.megatron.zero_grad()

    @property
    def remembers(self) -> bool:
        """Whether it has taken a step."""
        return any(each.state for each in self._by_torch())

    def forget(self) -> None:
        """As before its first step."""
        for each in self._by_torch():
            each.state.clear()

    def _by_torch(self) -> list[torch.optim.Optimizer]:
        chained = getattr(self.megatron, "chained_optimizers", [self.megatron])  # one of experts, and one of the rest
        return [each.optimizer for each in chained]

    def sharded_state(self, model_state: dict[str, Any], loading: bool) -> Any:
        """What it remembers, for a distributed checkpoint."""
        sharding = {"distrib_optim_sharding_type": _SHARDING} if self._config.use_distributed_optimizer else {}
        return self.megatron.sharded_state_dict(model_state, is_loading=loading, metadata=sharding)
