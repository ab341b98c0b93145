"""A key-value cache with room to grow, so that a new token is written in place instead of copying the whole cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

_ROOM = 64  # positions added whenever the room is used up


def roomy_cache(config: PretrainedConfig) -> DynamicCache:
    """An empty cache for a model; layers of other kinds (sliding windows) stay as the model's configuration wants."""
    cache = DynamicCache(config=config)
    cache.layers = [_RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class _RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """`keys` and `values` [B, heads, T, dim] are views of larger buffers."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._buffers is None or not _fits(self._buffers[0], key_states, end):
            self._buffers = _grown(self.keys, key_states, start, end), _grown(self.values, value_states, start, end)
        keys, values = self._buffers
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values


def _fits(buffer: Tensor, states: Tensor, end: int) -> bool:
    # The batch shrinks when finished rows are dropped.
    return buffer.shape[0] == states.shape[0] and buffer.shape[-2] >= end


def _grown(held: Tensor, states: Tensor, start: int, end: int) -> Tensor:
    batch, heads, _, dim = states.shape
    buffer = torch.empty((batch, heads, end + _ROOM, dim), dtype=states.dtype, device=states.device)
    if start:
        buffer[:, :, :start] = held
    return buffer
