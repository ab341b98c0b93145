"""Rollout Routing Replay (SLM-06): a token is trained with the experts that it was rolled out with.

The choice of experts is discrete, so a difference in the last digit between engine and trainer may send a token
elsewhere, and its log-prob with it (arXiv:2510.11370). Shapes: P positions, L layers, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter

from rufus_core.errors import DataError

UNRECORDED = -1  # in place of each expert of a position whose choice nobody recorded
_Routed = tuple[Tensor, Tensor, Tensor]


def routers(model: PreTrainedModel) -> dict[int, Glm4MoeTopkRouter]:
    """Routers by layer. Empty for a dense policy, and for one whose kind of router isn't known here."""
    layers = getattr(model.base_model, "layers", ())
    gates = [getattr(getattr(layer, "mlp", None), "gate", None) for layer in layers]
    return {index: gate for index, gate in enumerate(gates) if isinstance(gate, Glm4MoeTopkRouter)}


@dataclass(slots=True)
class Replay:
    """How far the routers would have chosen alike by themselves: for each layer, the share at each position."""

    agreeing: dict[int, Tensor] = field(default_factory=dict)

    @property
    def agreement_P(self) -> Tensor:
        """The share of the experts taken at each position, over all routers, that are the model's own choice."""
        return torch.stack(list(self.agreeing.values())).mean(0)


@contextmanager
def replayed_routing(model: PreTrainedModel, routed_PLK: Tensor | None) -> Iterator[Replay]:
    """Within it a pass of P positions, rows laid end to end, takes the experts in `routed_PLK`; None: its own.

    Where that says UNRECORDED the routers choose as ever. The weights are the routers' own in both cases: their scores
    of the experts taken, normalised and scaled as Glm4Moe does, so that gradients reach them as usual. What is
    recorded for a dense layer has no meaning.

    Raises:
        DataError: `routed_PLK` is of another model: other layers, other experts.
    """
    replay = Replay()
    with ExitStack() as hooks:
        if routed_PLK is not None:
            for layer, router in routers(model).items():
                recorded_PK = _recorded(routed_PLK, layer, router)
                hooks.enter_context(router.register_forward_hook(_taking(recorded_PK, replay, layer)))
        yield replay


def _recorded(routed_PLK: Tensor, layer: int, router: Glm4MoeTopkRouter) -> Tensor:
    _, num_layers, num_taken = routed_PLK.shape
    recorded_PK = routed_PLK[:, min(layer, num_layers - 1)].long()
    known = int(recorded_PK.min()) >= UNRECORDED and int(recorded_PK.max()) < router.num_experts
    if layer >= num_layers or num_taken != router.top_k or not known:
        raise DataError(
            f"routing of {num_layers} layers with {num_taken} experts a token doesn't fit the policy, "
            f"whose layer {layer} takes {router.top_k} of {router.num_experts} experts",
            hint="roll out with the policy that is trained",
        )
    return recorded_PK


def _taking(recorded_PK: Tensor, replay: Replay, layer: int) -> Callable[..., _Routed]:
    """What a router gives in place of its own output: logits, weights, experts."""

    def take(router: Glm4MoeTopkRouter, _: object, output: _Routed) -> _Routed:
        logits_PE, _, own_PK = output
        taken_PK = torch.where(recorded_PK == UNRECORDED, own_PK, recorded_PK)
        weights_PK = logits_PE.sigmoid().gather(1, taken_PK)
        if router.norm_topk_prob:
            weights_PK = weights_PK / (weights_PK.sum(-1, keepdim=True) + 1e-20)
        replay.agreeing[layer] = (taken_PK[:, :, None] == own_PK[:, None, :]).any(-1).float().mean(-1)
        return logits_PE, weights_PK * router.routed_scaling_factor, taken_PK

    return take
