"""Names and shapes of weights as published checkpoints have them, which is what engines load.

Transformers 5 keeps the experts of a layer in one tensor. Shapes: E experts, I width of an expert, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

_EXPERTS = ".mlp.experts."


def published(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A weight, or those of each expert where it holds all of a layer: `gate_up_proj` [E, 2I, D] and
    `down_proj` [E, D, I]."""
    layer, experts, kind = name.partition(_EXPERTS)
    if not experts or kind not in ("gate_up_proj", "down_proj"):
        yield name, tensor
        return
    for expert, weight in enumerate(tensor.unbind(0)):
        if kind == "down_proj":
            yield f"{layer}{_EXPERTS}{expert}.down_proj.weight", weight
            continue
        gate_ID, up_ID = weight.chunk(2, dim=0)
        yield f"{layer}{_EXPERTS}{expert}.gate_proj.weight", gate_ID
        yield f"{layer}{_EXPERTS}{expert}.up_proj.weight", up_ID
