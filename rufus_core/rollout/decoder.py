"""Forward passes of a decoder-only transformer over the rows of a cache.

Every product has a number of rows that is a multiple of four and every attention a width from a fixed ladder, filled
up with rows and positions that count for nothing. With that, a sequence's numbers don't depend on what it is computed
together with, on how its prompt was cut, nor on what the cache held: the libraries below take the same path each time.

Shapes: N tokens of any sequences, B sequences, T positions, D hidden size, H query heads, G key-value heads, S = H / G,
d size of a head, E experts, K of them for each token, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, pad, scaled_dot_product_attention, silu
from transformers import PreTrainedModel

from rufus_core.rollout.kv_cache import CacheShape, RowCache
from rufus_core.rollout.weights import Experts, Layer, Mlp, Weights

_ROWS = 4  # of the smallest block of rows that products treat alike
_WIDTH, _BLOCK = 64, 512  # positions: steps of the ladder, and the block in which attention runs over them


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `ids` of a row's prompt, from position `start` on."""

    row: int
    start: int
    ids: Sequence[int]


class Decoder:
    """A model's weights, as of the last `load`, and the numbers that its layers need."""

    def __init__(self, model: PreTrainedModel, max_positions: int) -> None:
        config = model.config
        self._weights = Weights.copy_of(model)
        self._eps = float(config.rms_norm_eps)
        self._heads, self._kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self._head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // self._heads)
        self._router = _Router(config) if any(isinstance(x.mlp, Experts) for x in self._weights.layers) else None
        self._cos_Td, self._sin_Td = _rotations(model.base_model.rotary_emb, max_positions)

    @property
    def cache_shape(self) -> CacheShape:
        moe_layers = sum(isinstance(layer.mlp, Experts) for layer in self._weights.layers)
        experts = self._router.experts_per_token if self._router else 0
        return CacheShape(len(self._weights.layers), self._kv_heads, self._head_dim, moe_layers, experts)

    @property
    def moe_layers(self) -> list[int]:
        return [i for i, layer in enumerate(self._weights.layers) if isinstance(layer.mlp, Experts)]

    def load(self, model: PreTrainedModel) -> None:
        """Take over another model's weights; it has the same shape."""
        self._weights.update(Weights.copy_of(model))

    def logits(self, hidden_ND: Tensor) -> Tensor:
        return linear(_filled(hidden_ND), self._weights.head)[: len(hidden_ND)]

    def decode(self, cache: RowCache, ids_B: Tensor, positions_B: Tensor) -> Tensor:
        """Put one token of each of the first B rows through the model; hidden states [B, D] after the last norm."""
        size = len(ids_B)
        rows_B = torch.arange(size)
        width = _attention_width(int(positions_B.max()) + 1)
        mask_B11T = (torch.arange(width) <= positions_B[:, None])[:, None, None]
        queries = -(-self._heads // self._kv_heads // _ROWS) * _ROWS

        def attend(held_RT2Gd: Tensor, query_NHd: Tensor, kv_N2Gd: Tensor) -> Tensor:
            held_RT2Gd[rows_B, positions_B] = kv_N2Gd
            query_BGSd = query_NHd.reshape(size, self._kv_heads, -1, self._head_dim)
            spread_BGSd = query_BGSd.new_zeros(size, self._kv_heads, queries, self._head_dim)
            spread_BGSd[:, :, : query_BGSd.shape[2]] = query_BGSd
            keys, values = held_RT2Gd[:size, :width].permute(2, 0, 3, 1, 4)
            out_BGSd = scaled_dot_product_attention(spread_BGSd, keys, values, attn_mask=mask_B11T)
            return out_BGSd[:, :, : query_BGSd.shape[2]].flatten(1)

        cache.ids[rows_B, positions_B] = ids_B
        return self._forward(ids_B, positions_B, rows_B, cache, attend)

    def prefill(self, cache: RowCache, pieces: Sequence[Piece]) -> Tensor:
        """Put tokens of prompts through the model; hidden states [N, D] after the last norm, piece after piece."""
        sizes = [len(piece.ids) for piece in pieces]
        rows_N = torch.repeat_interleave(torch.tensor([p.row for p in pieces]), torch.tensor(sizes))
        ids_N = torch.tensor([token for piece in pieces for token in piece.ids])
        positions_N = torch.cat([torch.arange(p.start, p.start + len(p.ids)) for p in pieces])
        share = self._heads // self._kv_heads
        masks = [_causal(piece, share) for piece in pieces]

        def attend(held_RT2Gd: Tensor, query_NHd: Tensor, kv_N2Gd: Tensor) -> Tensor:
            held_RT2Gd[rows_N, positions_N] = kv_N2Gd
            outputs, first = [], 0
            for piece, size, mask in zip(pieces, sizes, masks, strict=True):
                query_nHd = query_NHd[first : first + size]
                query_Gqd = (
                    query_nHd.reshape(size, self._kv_heads, -1)
                    .transpose(0, 1)
                    .reshape(self._kv_heads, -1, self._head_dim)
                )
                query_Gqd = pad(query_Gqd, (0, 0, 0, mask.shape[0] - query_Gqd.shape[1]))
                keys, values = held_RT2Gd[piece.row, : mask.shape[1]].permute(1, 2, 0, 3)
                out_Gqd = scaled_dot_product_attention(query_Gqd[None], keys[None], values[None], attn_mask=mask)[0]
                out_GnD = out_Gqd[:, : size * share].reshape(self._kv_heads, size, -1)
                outputs.append(out_GnD.transpose(0, 1).flatten(1))
                first += size
            return torch.cat(outputs)

        cache.ids[rows_N, positions_N] = ids_N
        return self._forward(ids_N, positions_N, rows_N, cache, attend)

    def _forward(
        self,
        ids_N: Tensor,
        positions_N: Tensor,
        rows_N: Tensor,
        cache: RowCache,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        size, heads, kv_heads = len(ids_N), self._heads, self._kv_heads
        hidden_ND = _filled(embedding(ids_N, self._weights.embedding))
        cos_N1d, sin_N1d = self._cos_Td[positions_N, None], self._sin_Td[positions_N, None]
        moe_layer = 0
        for layer, held_RT2Gd in zip(self._weights.layers, cache.layers, strict=True):
            normed_ND = _rms_norm(hidden_ND, layer.attention_norm, self._eps)
            qkv_Nhd = linear(normed_ND, layer.qkv, layer.qkv_bias)[:size].view(size, -1, self._head_dim)
            self._rotate(qkv_Nhd[:, : heads + kv_heads], layer, cos_N1d, sin_N1d)
            kv_N2Gd = qkv_Nhd[:, heads:].view(size, 2, kv_heads, -1)
            attended_ND = _filled(attend(held_RT2Gd, qkv_Nhd[:, :heads], kv_N2Gd))
            hidden_ND = hidden_ND + linear(attended_ND, layer.output)
            normed_ND = _rms_norm(hidden_ND, layer.mlp_norm, self._eps)
            if isinstance(layer.mlp, Mlp):
                hidden_ND = hidden_ND + _mlp(normed_ND, layer.mlp)
                continue
            assert self._router is not None
            weights_NK, chosen_NK = self._router.choose(normed_ND, layer.mlp)
            cache.routing[rows_N, positions_N, moe_layer] = chosen_NK[:size].to(torch.int16)
            moe_layer += 1
            mixed_ND = _filled(_mixture(normed_ND[:size], weights_NK[:size], chosen_NK[:size], layer.mlp))
            hidden_ND = hidden_ND + (mixed_ND + _mlp(normed_ND, layer.mlp.shared))
        return _rms_norm(hidden_ND, self._weights.norm, self._eps)[:size]

    def _rotate(self, qk_Nhd: Tensor, layer: Layer, cos_N1d: Tensor, sin_N1d: Tensor) -> None:
        """Normalise queries and keys where the model does, and turn them by their positions; in place."""
        if layer.qk_norm is not None:
            qk_Nhd.mul_(torch.rsqrt(qk_Nhd.pow(2).mean(-1, keepdim=True).add_(self._eps))).mul_(layer.qk_norm)
        turning = cos_N1d.shape[-1]
        part_Nhd = qk_Nhd[..., :turning]
        other_Nhd = part_Nhd.roll(turning // 2, -1)
        part_Nhd.mul_(cos_N1d).addcmul_(other_Nhd, sin_N1d)


class _Router:
    """The choice of experts of DeepSeek-V3 and GLM-4.5: sigmoid scores, a bias on the choice alone, within groups."""

    def __init__(self, config: Any) -> None:
        self.experts_per_token: int = config.num_experts_per_tok
        self._num_groups: int = config.n_group
        self._kept_groups: int = config.topk_group
        self._normalise: bool = config.norm_topk_prob
        self._scale: float = config.routed_scaling_factor

    def choose(self, hidden_ND: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
        """Weights and indices [N, K] of each token's experts."""
        scores_NE = linear(hidden_ND, experts.router).sigmoid()
        choice_NE = scores_NE + experts.bias
        if self._kept_groups < self._num_groups:
            grouped_NGE = choice_NE.view(len(choice_NE), self._num_groups, -1)
            best_NG = grouped_NGE.topk(2, dim=-1).values.sum(-1)
            kept_NG = torch.zeros_like(best_NG).scatter(1, best_NG.topk(self._kept_groups, sorted=False).indices, 1.0)
            choice_NE = grouped_NGE.masked_fill(kept_NG[..., None] == 0, float("-inf")).flatten(1)
        chosen_NK = choice_NE.topk(self.experts_per_token, dim=-1, sorted=False).indices
        weights_NK = scores_NE.gather(1, chosen_NK)
        if self._normalise:
            weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + 1e-20)
        return weights_NK * self._scale, chosen_NK


def _mixture(hidden_ND: Tensor, weights_NK: Tensor, chosen_NK: Tensor, experts: Experts) -> Tensor:
    """The weighted sum of each token's experts. Each expert sees its tokens in a block of rows filled up with zeros."""
    size, per_token = chosen_NK.shape
    flat_A = chosen_NK.flatten()
    order_A = flat_A.argsort(stable=True)
    counts = torch.bincount(flat_A, minlength=len(experts.router))
    filled = (counts + _ROWS - 1) // _ROWS * _ROWS
    shift = (filled.cumsum(0) - filled) - (counts.cumsum(0) - counts)  # by which an expert's block moves
    place_A = torch.arange(len(flat_A)) + shift[flat_A[order_A]]
    rows_PD = hidden_ND.new_zeros(int(filled.sum()), hidden_ND.shape[1])
    rows_PD[place_A] = hidden_ND[order_A // per_token]
    blocks = torch.split(rows_PD, filled.tolist())
    outputs_PD = torch.cat(
        [_mlp(block, Mlp(up, down)) for block, up, down in zip(blocks, experts.gate_up, experts.down, strict=True)]
    )
    back_A = torch.empty_like(place_A)
    back_A[order_A] = place_A
    return (outputs_PD[back_A].view(size, per_token, -1) * weights_NK[..., None]).sum(1)


def _mlp(hidden_ND: Tensor, mlp: Mlp) -> Tensor:
    if not len(hidden_ND):
        return hidden_ND
    gate_NF, up_NF = linear(hidden_ND, mlp.gate_up).chunk(2, dim=-1)
    return linear(silu(gate_NF).mul_(up_NF), mlp.down)


def _rms_norm(hidden_ND: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    scale_N1 = torch.rsqrt(hidden_ND.pow(2).mean(-1, keepdim=True).add_(eps))
    return (hidden_ND * scale_N1).mul_(weight_D)


def _filled(rows_ND: Tensor) -> Tensor:
    missing = -len(rows_ND) % _ROWS
    return pad(rows_ND, (0, 0, 0, missing)) if missing else rows_ND


def _attention_width(positions: int) -> int:
    """The least width on the ladder. Matrix libraries sum up to 192 products in one go and halve what is between that
    and 384, so those widths are left out."""
    whole, rest = divmod(positions, _BLOCK)
    steps = -(-rest // _WIDTH)
    return whole * _BLOCK + (6 if steps in (4, 5) else steps) * _WIDTH


def _causal(piece: Piece, share: int) -> Tensor:
    """What each query of a piece may look at, `share` queries for each token; [queries, width], filled up."""
    positions = torch.arange(piece.start, piece.start + len(piece.ids)).repeat_interleave(share)
    positions = pad(positions, (0, -len(positions) % _ROWS))
    return torch.arange(_attention_width(piece.start + len(piece.ids))) <= positions[:, None]


def _rotations(rotary: Any, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [T, d']: with them, x turns to x * cos + (x with its halves exchanged) * sin."""
    angles_Td = torch.arange(positions)[:, None].float() * rotary.inv_freq.float()
    cos_Td, sin_Td = angles_Td.cos() * rotary.attention_scaling, angles_Td.sin() * rotary.attention_scaling
    return torch.cat([cos_Td, cos_Td], dim=-1), torch.cat([-sin_Td, sin_Td], dim=-1)
