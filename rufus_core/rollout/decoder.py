"""Forward passes of a decoder-only transformer over the rows of a cache.

Every product has a number of rows that is a multiple of four and every attention a width from a fixed ladder, filled
up with rows and positions that count for nothing. With that, a sequence's numbers don't depend on what it is computed
together with, on how its prompt was cut, nor on what the cache held: the libraries below take the same path each time.

Shapes: N tokens of any sequences, B sequences, T positions, D hidden size, H query heads, G key-value heads, S = H / G,
d size of a head, E experts, K of them for each token, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, pad, scaled_dot_product_attention, silu
from transformers import PreTrainedModel

from rufus_core.rollout.kv_cache import ROW_BLOCK, CacheShape, Piece, RowCache, attention_width
from rufus_core.rollout.weights import Experts, Layer, Mlp, Weights

_ROWS = 4  # of the smallest block of rows that products treat alike
_FEW_ROWS, _LARGE = range(12, 129), 1 << 17  # from 12 rows on both ways of a product give the same bits


class Decoder:
    """A model's weights, as of the last `load`, and the numbers that its layers need."""

    def __init__(self, model: PreTrainedModel, max_positions: int) -> None:
        config = model.config
        self._weights = Weights.copy_of(model)
        self._eps = float(config.rms_norm_eps)
        self._heads, self._kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self._share = self._heads // self._kv_heads
        self._head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // self._heads)
        self._router = _Router(config) if any(isinstance(x.mlp, Experts) for x in self._weights.layers) else None
        self._cos_Td, self._sin_Td = _rotations(model.base_model.rotary_emb, max_positions)

    @property
    def cache_shape(self) -> CacheShape:
        moe_layers = sum(isinstance(layer.mlp, Experts) for layer in self._weights.layers)
        experts = self._router.experts_per_token if self._router else 0
        return CacheShape(len(self._weights.layers), self._kv_heads, self._head_dim, moe_layers, experts)

    @property
    def moe_layers(self) -> Sequence[int]:
        return [i for i, layer in enumerate(self._weights.layers) if isinstance(layer.mlp, Experts)]

    def load(self, model: PreTrainedModel) -> None:
        """Take over another model's weights; it has the same shape."""
        self._weights = Weights.copy_of(model)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        return _product(_filled(hidden_ND), self._weights.head).contiguous()[: len(hidden_ND)]

    def forward(self, cache: RowCache, ids_B: Tensor, positions_B: Tensor, pieces: Sequence[Piece]) -> Tensor:
        """Put one token of each of the first B rows, and pieces of prompts of later ones, through the model.

        Hidden states [N, D] after the last norm: those of the B rows, then those of each piece.
        """
        sizes = [len(piece.ids) for piece in pieces]
        rows_N = torch.tensor(
            [*range(len(ids_B)), *(p.row for p, size in zip(pieces, sizes, strict=True) for _ in range(size))]
        )
        ids_N = torch.cat([ids_B, *(torch.tensor(piece.ids) for piece in pieces)])
        positions_N = torch.cat([positions_B, *(torch.arange(p.start, p.start + len(p.ids)) for p in pieces)])
        cache.ids[rows_N, positions_N] = ids_N

        attentions: list[_Rows | _OnePiece] = [_Rows(positions_B, self._share)] if len(ids_B) else []
        attentions += [_OnePiece(piece, self._share) for piece in pieces]
        cuts = [len(ids_B)] * bool(len(ids_B)) + sizes

        hidden_ND = _filled(embedding(ids_N, self._weights.embedding))
        cos_N1d, sin_N1d = self._cos_Td[positions_N, None], self._sin_Td[positions_N, None]
        size, heads, kv_heads = len(ids_N), self._heads, self._kv_heads
        moe_layer = 0
        for layer, held_RT2Gd in zip(self._weights.layers, cache.layers, strict=True):
            normed_ND = _rms_norm(hidden_ND, layer.attention_norm, self._eps)
            qkv_ND = _product(normed_ND, layer.qkv).contiguous()
            if layer.qkv_bias is not None:
                qkv_ND.add_(layer.qkv_bias)
            qkv_Nhd = qkv_ND[:size].view(size, -1, self._head_dim)
            self._rotate(qkv_Nhd[:, : heads + kv_heads], layer, cos_N1d, sin_N1d)
            held_RT2Gd[rows_N, positions_N] = qkv_Nhd[:, heads:].view(size, 2, kv_heads, -1)
            queries = torch.split(qkv_Nhd[:, :heads].reshape(size, kv_heads, self._share, -1), cuts)
            attended_ND = torch.cat([attend(held_RT2Gd, q) for attend, q in zip(attentions, queries, strict=True)])
            hidden_ND = hidden_ND + _product(_filled(attended_ND), layer.output).contiguous()
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
        # In double precision, for the last few of a tensor are computed by another exponential than the rest.
        scores_NE = linear(hidden_ND, experts.router).double().sigmoid().float()
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
    expert_A = chosen_NK.flatten()
    seen_AE = (expert_A[:, None] == torch.arange(len(experts.router))).cumsum(0)
    counts_E = seen_AE[-1]
    filled_E = (counts_E + _ROWS - 1) // _ROWS * _ROWS
    most = int(filled_E.max())
    even = most * len(counts_E) <= 2 * len(expert_A)  # then blocks of one size waste little, and one product does all
    if even:
        filled_E = torch.full_like(filled_E, most)
    start_E = filled_E.cumsum(0) - filled_E
    place_A = start_E[expert_A] + seen_AE.gather(1, expert_A[:, None])[:, 0] - 1
    rows_PD = hidden_ND.new_zeros(int(filled_E.sum()), hidden_ND.shape[1])
    rows_PD[place_A] = hidden_ND.repeat_interleave(per_token, 0)
    if even:
        outputs_PD = _mlps(rows_PD.view(len(counts_E), most, -1), experts).flatten(0, 1)
    else:
        blocks = torch.split(rows_PD, filled_E.tolist())
        outputs = [_mlp(x, Mlp(up, down)) for x, up, down in zip(blocks, experts.gate_up, experts.down, strict=True)]
        outputs_PD = torch.cat(outputs)
    return (outputs_PD[place_A].view(size, per_token, -1) * weights_NK[..., None]).sum(1)


def _mlps(hidden_ECD: Tensor, experts: Experts) -> Tensor:
    """Each expert on its own block of C rows."""
    gate_ECF, up_ECF = torch.bmm(hidden_ECD, experts.gate_up.transpose(1, 2)).chunk(2, dim=-1)
    return torch.bmm(silu(gate_ECF).mul_(up_ECF), experts.down.transpose(1, 2))


def _mlp(hidden_ND: Tensor, mlp: Mlp) -> Tensor:
    gate_NF, up_NF = _product(hidden_ND, mlp.gate_up).chunk(2, dim=-1)
    return _product(silu(gate_NF).mul_(up_NF), mlp.down).contiguous()


def _product(rows_NK: Tensor, weight_MK: Tensor) -> Tensor:
    """`linear`, to the bit, with the threads over the weight's rows where there are few others and many of those.

    The result may be laid out by columns.
    """
    if len(rows_NK) in _FEW_ROWS and weight_MK.numel() >= _LARGE:
        return (weight_MK @ rows_NK.t()).t()
    return linear(rows_NK, weight_MK)


def _rms_norm(hidden_ND: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    scale_N1 = torch.rsqrt(hidden_ND.pow(2).mean(-1, keepdim=True).add_(eps))
    return (hidden_ND * scale_N1).mul_(weight_D)


def _filled(rows_ND: Tensor) -> Tensor:
    missing = -len(rows_ND) % _ROWS
    return pad(rows_ND, (0, 0, 0, missing)) if missing else rows_ND


class _Rows:
    """Attention of one token each of the first B rows, in blocks of them, each as wide as its longest needs."""

    def __init__(self, positions_B: Tensor, share: int) -> None:
        self._missing = -share % _ROWS
        self._blocks = []
        for first in range(0, len(positions_B), ROW_BLOCK):
            block = positions_B[first : first + ROW_BLOCK]
            width = attention_width(int(block.max()) + 1)
            mask_B11T = (torch.arange(width) <= block[:, None])[:, None, None]
            self._blocks.append((slice(first, first + len(block)), width, mask_B11T))

    def __call__(self, held_RT2Gd: Tensor, query_BGSd: Tensor) -> Tensor:
        share = query_BGSd.shape[2]
        filled_BGSd = pad(query_BGSd, (0, 0, 0, self._missing))
        outputs = []
        for rows, width, mask_B11T in self._blocks:
            keys, values = held_RT2Gd[rows, :width].permute(2, 0, 3, 1, 4)
            outputs.append(scaled_dot_product_attention(filled_BGSd[rows], keys, values, attn_mask=mask_B11T))
        return torch.cat(outputs)[:, :, :share].flatten(1)


class _OnePiece:
    """Attention of a piece of a prompt: the S queries of each of its n tokens stand below one another."""

    def __init__(self, piece: Piece, share: int) -> None:
        positions_q = torch.arange(piece.start, piece.start + len(piece.ids)).repeat_interleave(share)
        self._missing = -len(positions_q) % _ROWS
        width = attention_width(piece.start + len(piece.ids))
        self._row, self._mask_qT = piece.row, torch.arange(width) <= pad(positions_q, (0, self._missing))[:, None]

    def __call__(self, held_RT2Gd: Tensor, query_nGSd: Tensor) -> Tensor:
        size, kv_heads, share, _ = query_nGSd.shape
        keys, values = held_RT2Gd[self._row, : self._mask_qT.shape[1]].permute(1, 2, 0, 3)
        query_Gqd = pad(query_nGSd.transpose(0, 1).flatten(1, 2), (0, 0, 0, self._missing))
        out_Gqd = scaled_dot_product_attention(query_Gqd[None], keys[None], values[None], attn_mask=self._mask_qT)[0]
        return out_Gqd[:, : size * share].reshape(kv_heads, size, -1).transpose(0, 1).flatten(1)


def _rotations(rotary: Any, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [T, d']: with them, x turns to x * cos + (x with its halves exchanged) * sin."""
    angles_Td = torch.arange(positions)[:, None].float() * rotary.inv_freq.float()
    cos_Td, sin_Td = angles_Td.cos() * rotary.attention_scaling, angles_Td.sin() * rotary.attention_scaling
    return torch.cat([cos_Td, cos_Td], dim=-1), torch.cat([-sin_Td, sin_Td], dim=-1)
