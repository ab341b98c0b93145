"""Forward passes by Hugging Face's own modules, for families that `Decoder` doesn't describe. Slower, and as general.

Shapes: B sequences, N tokens, R rows, T positions, G key-value heads, d size of a head, D hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rufus_core.errors import EngineError
from rufus_core.rollout.kv_cache import CacheShape, Piece, RowCache


class TransformersDecoder:
    """A copy of a model, as of the last `load`.

    Raises:
        EngineError: its layers keep something else than keys and values of every position, or its logits are more than
            a product of the last hidden states.
    """

    moe_layers: tuple[int, ...] = ()  # routing is recorded by `Decoder` alone

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        kinds = {type(layer).__name__ for layer in DynamicCache(config=config).layers}
        if kinds != {DynamicLayer.__name__}:
            raise EngineError(
                f"this engine serves full attention, and a {config.model_type} model keeps {', '.join(sorted(kinds))}"
            )
        self._model = copy.deepcopy(model).eval()
        self._check_head()
        heads = int(config.num_attention_heads)
        self.cache_shape = CacheShape(
            layers=int(config.num_hidden_layers),
            kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        )

    def load(self, model: PreTrainedModel) -> None:
        """Take over another model's weights; it has the same shape."""
        with torch.no_grad():
            for kind in (nn.Module.parameters, nn.Module.buffers):  # a router's bias is a buffer
                for own, new in zip(kind(self._model), kind(model), strict=True):
                    own.copy_(new)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        logits_NV: Tensor = self._model.get_output_embeddings()(hidden_ND).float()
        return logits_NV

    def _check_head(self) -> None:
        """Some families scale logits, or bound them, by rules of their own."""
        ids_1N = torch.arange(min(8, int(self._model.config.get_text_config().vocab_size)))[None]
        with torch.inference_mode():
            own_NV = self._model(input_ids=ids_1N, use_cache=False).logits[0].float()
            plain_NV = self.logits(self._model.base_model(input_ids=ids_1N, use_cache=False).last_hidden_state[0])
        if not torch.allclose(own_NV, plain_NV, rtol=1e-3, atol=1e-3, equal_nan=True):
            kind = self._model.config.model_type
            raise EngineError(f"this engine takes logits as the head gives them, and a {kind} model changes them")

    def forward(self, cache: RowCache, ids_B: Tensor, positions_B: Tensor, pieces: Sequence[Piece]) -> Tensor:
        """As `Decoder.forward`: hidden states [N, D] of a token of each of the first B rows, then of each piece."""
        parts = []
        if len(ids_B):
            parts.append(self._run(cache, torch.arange(len(ids_B)), ids_B[:, None], positions_B[:, None]))
        for piece in pieces:
            positions = torch.arange(piece.start, piece.start + len(piece.ids))
            parts.append(self._run(cache, torch.tensor([piece.row]), torch.tensor([piece.ids]), positions[None]))
        return torch.cat(parts)

    def _run(self, cache: RowCache, rows_B: Tensor, ids_BN: Tensor, positions_BN: Tensor) -> Tensor:
        cache.ids[rows_B[:, None], positions_BN] = ids_BN
        width = int(positions_BN.max()) + 1
        held = DynamicCache()
        held.layers = [_HeldLayer(layer, rows_B, positions_BN, width) for layer in cache.layers]
        hidden_BND: Tensor = self._model.base_model(
            input_ids=ids_BN,
            position_ids=positions_BN,
            attention_mask=(torch.arange(width) <= positions_BN[..., None])[:, None],
            cache=held,
            use_cache=True,
        ).last_hidden_state
        return hidden_BND.flatten(0, 1)


class _HeldLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of some rows of the engine's own cache, in the shape that attention asks for."""

    def __init__(self, held_RT2Gd: Tensor, rows_B: Tensor, positions_BN: Tensor, width: int) -> None:
        super().__init__()
        self._held_RT2Gd, self._rows_B, self._positions_BN, self._width = held_RT2Gd, rows_B, positions_BN, width

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        new_BN2Gd = torch.stack([key_states, value_states], dim=1).permute(0, 3, 1, 2, 4)
        self._held_RT2Gd[self._rows_B[:, None], self._positions_BN] = new_BN2Gd.float()
        keys, values = self._held_RT2Gd[self._rows_B, : self._width].to(key_states.dtype).permute(2, 0, 3, 1, 4)
        return keys, values
