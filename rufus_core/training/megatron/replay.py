"""Rollout Routing Replay (SLM-06) in Megatron-core's routers: the experts that a rollout took, not the router's own.

Shapes: S tokens of a micro-batch, with those that fill it up, t of them on this rank; K experts of a token, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from megatron.core import parallel_state
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from torch import Tensor, nn
from transformers import PretrainedConfig

from rufus_core.errors import DataError
from rufus_core.rollout.routing import UNRECORDED
from rufus_core.training.megatron.parallel import sum_over_model

TopK = Callable[..., tuple[Tensor, Tensor]]


class ReplayedRouter(RouterReplay):  # type: ignore[misc]
    """A router's choice of experts: as recorded, its own where that is UNRECORDED.

    A pass that is computed again for its gradient takes what the first one took. The pipeline takes micro-batches
    backward in the order in which they went forward, so that a queue is enough.
    """

    def __init__(self, layer: int, recomputes: bool) -> None:
        super().__init__()
        self.global_router_replay_instances.remove(self)  # a process may hold two policies, each with its own routers
        self.layer, self._recomputes = layer, recomputes
        self.agreeing: list[Tensor] = []  # of each micro-batch [t]: share of experts that are its own choice
        self._queue: list[Tensor] = []
        self._training = False

    def forget(self) -> None:
        self.clear_indices()
        self.agreeing, self._queue = [], []

    def expect(self, recorded_tK: Tensor | None, training: bool) -> None:
        """Of the next micro-batch; None: the router's own choice."""
        self.target_topk_idx, self._training = recorded_tK, training
        self.set_router_replay_action(RouterReplayAction.REPLAY_FORWARD)

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: TopK | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert default_compute_topk is not None
        if self._training and self._recomputes and torch.is_grad_enabled():
            taken_tK = self._queue.pop(0)
        else:
            _, own_tK = default_compute_topk(scores, topk, num_groups, group_topk)
            target_tK = own_tK if self.target_topk_idx is None else self.target_topk_idx.to(own_tK.device)
            taken_tK = torch.where(target_tK == UNRECORDED, own_tK, target_tK)
            self.agreeing.append((taken_tK[:, :, None] == own_tK[:, None, :]).any(-1).float().mean(-1))
            self.record_indices(taken_tK)
            if self._training and self._recomputes:
                self._queue.append(taken_tK)
        return scores.gather(1, taken_tK), taken_tK


class Replay:
    """The routers of a model on this rank, each with its choice of experts.

    `recomputes`: whole layers are computed again for their gradient.
    """

    def __init__(self, model: nn.Module, config: PretrainedConfig, recomputes: bool) -> None:
        self._config = config
        self.routers: list[ReplayedRouter] = []
        for module in model.modules():
            if isinstance(module, TopKRouter):
                module.router_replay = ReplayedRouter(module.layer_number - 1, recomputes)
                self.routers.append(module.router_replay)

    def begin(self) -> None:
        """Passes follow; what earlier ones left is forgotten."""
        for router in self.routers:
            router.forget()

    def expect(self, recorded_SLK: Tensor | None, training: bool) -> None:
        """The next micro-batch, on all its tokens.

        Raises:
            DataError: the routing is of another model.
        """
        for router in self.routers:
            recorded_tK = None if recorded_SLK is None else local_tokens(self._of_layer(recorded_SLK, router.layer))
            router.expect(recorded_tK, training)

    def agreement(self, predictors: Sequence[Tensor], num_tokens: Sequence[int]) -> list[float]:
        """Of the experts taken where a trained token is predicted, the share that are the routers' own choice.

        For each micro-batch that passed, over all routers of the policy; every rank of the policy asks at once.
        `predictors` are places in [S], `num_tokens` sizes S.
        """
        num_routers = self._config.num_hidden_layers - self._config.first_k_dense_replace
        shares = torch.zeros(len(predictors))
        for number, (places_N, size) in enumerate(zip(predictors, num_tokens, strict=True)):
            asked_t = local_tokens(torch.zeros(size).index_fill(0, places_N, 1.0))
            agreed = sum(float((router.agreeing[number].cpu() * asked_t).sum()) for router in self.routers)
            shares[number] = agreed / max(1, len(places_N) * num_routers)
        return [float(share) for share in sum_over_model(shares)]

    def _of_layer(self, recorded_SLK: Tensor, layer: int) -> Tensor:
        taken, known = self._config.num_experts_per_tok, self._config.n_routed_experts
        _, num_layers, num_taken = recorded_SLK.shape
        recorded_SK = recorded_SLK[:, min(layer, num_layers - 1)].long()
        fits = int(recorded_SK.min()) >= UNRECORDED and int(recorded_SK.max()) < known
        if layer >= num_layers or num_taken != taken or not fits:
            raise DataError(
                f"routing of {num_layers} layers with {num_taken} experts a token doesn't fit the policy, "
                f"whose layer {layer} takes {taken} of {known} experts",
                hint="roll out with the policy that is trained",
            )
        return recorded_SK


def local_tokens(values_S: Tensor) -> Tensor:
    """This tensor parallel rank's part of the tokens, which a sequence parallel stage cuts between its ranks."""
    size = parallel_state.get_tensor_model_parallel_world_size()
    part: Tensor = values_S.chunk(size)[parallel_state.get_tensor_model_parallel_rank()]
    return part
