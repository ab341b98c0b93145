"""The trainer of one machine: a Hugging Face model in every rank, whose gradients are summed.

It computes in fp32, on a CPU or on one GPU for each rank. Losses see log-probs in the host's memory: a few numbers for
each token, beside which lies what they are compared with.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rufus_core.algorithms.losses import LossOutput
from rufus_core.data.chat import ChatFormat
from rufus_core.errors import ConfigError
from rufus_core.rollout.policy import Policy
from rufus_core.rollout.routing import replayed_routing, routers
from rufus_core.settings import LayoutSettings, OptimizerSettings
from rufus_core.training.forward import PackedBatch, TokenSequence, micro_batches, token_logprobs, trained_logprobs
from rufus_core.training.module_state import ModuleState
from rufus_core.training.optimizer import make_optimizer, optimizer_step
from rufus_core.training.ranks import ALONE, Ranks
from rufus_core.training.trainer import Loss, Scored


class TorchTrainer(ModuleState):
    """Trains the policy's model in place. `reference`: keep the policy as it is now, to measure a KL towards it.

    Raises:
        ConfigError: `device` is a GPU, and there is none.
    """

    def __init__(
        self,
        policy: Policy,
        settings: OptimizerSettings,
        ranks: Ranks = ALONE,
        *,
        reference: bool = False,
        micro_batch_tokens: int = LayoutSettings().micro_batch_tokens,
        device: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        self._device = _existing(device)
        policy.model.to(self._device)
        self._policy, self._ranks, self._micro_batch_tokens = policy, ranks, micro_batch_tokens
        self._reference = copy.deepcopy(policy.model).eval() if reference else None
        self._optimizer = make_optimizer(policy.model.train(), settings)
        super().__init__(policy.model, self._optimizer)

    @property
    def ranks(self) -> Ranks:
        return self._ranks

    @property
    def chat(self) -> ChatFormat:
        return self._policy.chat

    @property
    def context_length(self) -> int:
        return self._policy.context_length

    @property
    def has_routers(self) -> bool:
        return bool(routers(self._policy.model))

    def hf_model(self) -> PreTrainedModel:
        return self._policy.model

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self._policy.model.state_dict().items())

    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float) -> list[list[float]]:
        return self._ranks.spread(sequences, lambda share: self._logprobs(share, temperature))

    def _logprobs(self, sequences: Sequence[TokenSequence], temperature: float) -> list[list[float]]:
        rows = [[0.0] * len(sequence.token_ids) for sequence in sequences]
        numbered = [replace(sequence, index=number) for number, sequence in enumerate(sequences)]
        with torch.no_grad():
            for micro in micro_batches(numbered, self._micro_batch_tokens):
                there = micro.to(self._device)
                with replayed_routing(self._policy.model, there.routed_PLK):
                    values_N = trained_logprobs(self._policy.model, there, temperature)
                for sequence, offset, value in zip(
                    micro.sequence_N.tolist(), micro.offset_N.tolist(), values_N.tolist(), strict=True
                ):
                    rows[sequence][offset] = value
        return rows

    def accumulate(
        self,
        sequences: Sequence[TokenSequence],
        loss: Loss,
        temperature: float = 1.0,
        *,
        entropy: bool = False,
        reference: bool = False,
    ) -> list[LossOutput]:
        self._policy.model.train()
        outputs = []
        for micro in micro_batches(self._ranks.share(sequences), self._micro_batch_tokens):
            output = self._loss(micro, loss, temperature, entropy, reference)
            output.loss.backward()  # type: ignore[no-untyped-call]
            outputs.append(replace(output, loss=output.loss.detach()))
        return self._ranks.concat(outputs)

    def _loss(self, micro: PackedBatch, loss: Loss, temperature: float, entropy: bool, reference: bool) -> LossOutput:
        entropy_N = reference_N = None
        there = micro.to(self._device)
        with replayed_routing(self._policy.model, there.routed_PLK) as replay:
            if entropy:
                new_N, entropy_N = (each.cpu() for each in token_logprobs(self._policy.model, there, temperature))
            else:
                new_N = trained_logprobs(self._policy.model, there, temperature).cpu()
        if reference:
            assert self._reference is not None
            with torch.no_grad():  # by its own routing: it is a policy of its own, and the KL shall see routers drift
                reference_N = trained_logprobs(self._reference, there, temperature).cpu()
        output = loss(Scored(micro, new_N, entropy_N, reference_N))
        if there.routed_PLK is not None:
            output.metrics["routing_agreement"] = replay.agreement_P[there.predictor_N].mean().item()
        return output

    def step(self, lr: float, grad_clip: float) -> float:
        self._ranks.sum_gradients(self._policy.model)
        return optimizer_step(self._policy.model, self._optimizer, lr, grad_clip)

    def discard(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def save_policy(self, folder: Path) -> None:
        if self._ranks.rank == 0:
            self._policy.save(folder)

    def end(self) -> None:
        self._policy.model.eval()


def _existing(device: Literal["cpu", "cuda"]) -> torch.device:
    """A rank has one GPU, the first that it can see."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "this training is to have a GPU, and torch finds none on this machine",
            where="compute.gpus_per_node",
            hint="start it where the GPUs are, or set it to 0",
        )
    return torch.device(device)
