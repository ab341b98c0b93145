"""The trainer of a cluster: a policy that Megatron-core cuts over ranks.

Shapes: N trained tokens of a micro-batch.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from mbridge.core.util import unwrap_model
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from rufus_core.algorithms.losses import LossOutput
from rufus_core.data.chat import ChatFormat
from rufus_core.rollout.policy import Policy
from rufus_core.settings import LayoutSettings, OptimizerSettings
from rufus_core.training.forward import TokenSequence
from rufus_core.training.megatron.bridge import GlmBridge, NamedWeights
from rufus_core.training.megatron.layout import check_layout
from rufus_core.training.megatron.optimizer import Optimizer
from rufus_core.training.megatron.parallel import speaks, start_parallel
from rufus_core.training.megatron.passes import ResultT, Score, Shares, run_passes
from rufus_core.training.megatron.replay import Replay
from rufus_core.training.megatron.state import load_sharded, save_sharded
from rufus_core.training.megatron.weights import empty_model, fill, whole_weights
from rufus_core.training.ranks import ALONE, Ranks
from rufus_core.training.trainer import Loss, Scored

_Value = tuple[int, int, float]  # a sequence by its index, the place of a trained token in it, its log-prob


class MegatronTrainer:
    """Trains the policy of a directory. `reference`: keep the policy as it is there too, to measure a KL towards it.

    Raises:
        ConfigError: the policy can't be cut so, or there is no GPU.
    """

    sharded = True

    def __init__(
        self,
        parent: Path,
        settings: OptimizerSettings,
        layout: LayoutSettings,
        ranks: Ranks = ALONE,
        *,
        precision: Literal["bf16", "fp32"] = "bf16",
        reference: bool = False,
    ) -> None:
        self._config = AutoConfig.from_pretrained(parent, trust_remote_code=False)
        check_layout(self._config, layout, ranks.size)
        start_parallel(layout)
        self._ranks, self._layout = ranks, layout
        self._chat = ChatFormat(AutoTokenizer.from_pretrained(parent, trust_remote_code=False))
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._bridge = GlmBridge(self._config, layout, self._dtype)
        self._model = self._load(parent, trained=True)
        self.replay = Replay(self._model, self._config, recomputes=layout.recompute == "full")
        self._optimizer = Optimizer(self._model, settings, self._dtype, layout.distributed_optimizer)
        self._reference = self._load(parent, trained=False).eval() if reference else None
        self._copy: PreTrainedModel | None = None

    def _load(self, parent: Path, trained: bool) -> nn.Module:
        model: nn.Module
        ddp = {"grad_reduce_in_fp32": True, "use_distributed_optimizer": self._layout.distributed_optimizer}
        with contextlib.redirect_stdout(io.StringIO()):  # it prints how many weights a rank has
            (model,) = self._bridge.get_model(
                wrap_with_ddp=trained,
                bf16=self._dtype is torch.bfloat16,
                ddp_config=ddp,
                data_parallel_random_init=False,
            )
        with torch.no_grad():
            self._bridge.load_weights([NamedWeights(unwrap_model(model))], str(parent))
        return model

    @property
    def ranks(self) -> Ranks:
        return self._ranks

    @property
    def chat(self) -> ChatFormat:
        return self._chat

    @property
    def context_length(self) -> int:
        return int(self._config.max_position_embeddings)

    @property
    def has_routers(self) -> bool:
        return True

    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float) -> list[list[float]]:
        numbered = [replace(sequence, index=number) for number, sequence in enumerate(sequences)]
        shares = Shares(numbered, self._layout.micro_batch_tokens)
        rows = [[0.0] * len(sequence.token_ids) for sequence in sequences]
        scored = self._forward(self._model, shares, temperature, self._replayed(shares, training=False))
        for number, offset, value in self._ranks.concat(
            [each for batch in scored for each in batch] if speaks() else []
        ):
            rows[number][offset] = value
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
        shares = Shares(sequences, self._layout.micro_batch_tokens)
        references: Iterator[list[_Value]] = iter(())
        if reference:
            assert self._reference is not None
            # By its own routing: it is a policy of its own, and the KL shall see routers drift.
            references = iter(self._forward(self._reference, shares, temperature))

        def score(number: int, logprobs_N: Tensor, entropy_N: Tensor) -> tuple[Tensor, tuple[int, LossOutput]]:
            reference_N = torch.tensor([value for *_, value in next(references)]) if reference else None
            output = loss(Scored(shares.batches[number], logprobs_N, entropy_N if entropy else None, reference_N))
            return output.loss, (number, replace(output, loss=output.loss.detach()))

        before = self._replayed(shares, training=True)
        passed = self._pass(self._model.train(), shares, score, temperature, before, backward=True)
        agreement = self.replay.agreement(*shares.predictors) if shares.replayed else []
        for number, output in passed:
            if shares.batches[number].routed_PLK is not None:
                output.metrics["routing_agreement"] = agreement[number]
        return self._ranks.concat([output for _, output in passed] if speaks() else [])

    def _forward(
        self, model: nn.Module, shares: Shares, temperature: float, before: Callable[[int], None] | None = None
    ) -> list[list[_Value]]:
        """What is found of each micro-batch with trained tokens, on the last stage."""

        def score(number: int, logprobs_N: Tensor, _: Tensor) -> tuple[Tensor, list[_Value]]:
            batch = shares.batches[number]
            places = zip(batch.sequence_N.tolist(), batch.offset_N.tolist(), logprobs_N.tolist(), strict=True)
            return logprobs_N.sum(), list(places)

        return self._pass(model, shares, score, temperature, before or (lambda _: None), backward=False)

    def _pass(
        self,
        model: nn.Module,
        shares: Shares,
        score: Score[ResultT],
        temperature: float,
        before: Callable[[int], None],
        backward: bool,
    ) -> list[ResultT]:
        vocab_size = self._config.vocab_size
        return run_passes(
            model, shares, score, temperature=temperature, vocab_size=vocab_size, backward=backward, before=before
        )

    def _replayed(self, shares: Shares, training: bool) -> Callable[[int], None]:
        """What puts the recorded experts of a micro-batch in place before it goes forward."""
        self.replay.begin()
        return lambda number: self.replay.expect(shares.rows[number].routing(shares.batches[number]), training)

    def step(self, lr: float, grad_clip: float) -> float:
        return self._optimizer.step(lr, grad_clip)

    def discard(self) -> None:
        self._optimizer.clear()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return whole_weights(self._bridge, unwrap_model(self._model))

    def hf_model(self) -> PreTrainedModel:
        if self._copy is None:
            self._copy = empty_model(self._config, self._dtype)
        fill(self._copy, self.weights())
        return self._copy

    def save_policy(self, folder: Path) -> None:
        if self._ranks.rank == 0:  # one copy for all ranks of a machine, which may have no room for more
            Policy(self.hf_model(), self._chat).save(folder)
        else:
            for _ in self.weights():
                pass

    def save_state(self, folder: Path) -> None:
        save_sharded(folder, unwrap_model(self._model), self._optimizer)

    def load_state(self, folder: Path) -> None:
        load_sharded(folder, unwrap_model(self._model), self._optimizer)

    def end(self) -> None:
        self._model.eval()
