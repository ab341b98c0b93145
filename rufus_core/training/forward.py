"""Log-probs of trained tokens from rows of sequences without padding; prompts cost no logits.

A micro-batch is one row: whole sequences, laid end to end from the longest to the shortest. Attention is computed by
blocks of equally long sequences, causal and without a mask, so no position looks beyond its own sequence.

Shapes: P positions of a row, N trained tokens in order of position, L layers, K experts of a token, H heads, d size of
a head, C sequences of a block, T positions of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rufus_core.data.packing import IGNORE, PackedRow, pack
from rufus_core.errors import ConfigError, DataError
from rufus_core.rollout.routing import UNRECORDED

_BY_BLOCKS = "by_blocks"  # what transformers calls our attention


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids of one sequence, 1 in `mask` where a token is trained, and the index the caller knows it by.

    `routed_experts` [tokens - 1, L, K] is what its tokens were put through when they were rolled out.
    """

    index: int
    token_ids: Sequence[int]
    mask: Sequence[int]
    routed_experts: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class PackedBatch:
    ids_1P: Tensor
    positions_1P: Tensor
    blocks: Sequence[tuple[int, int]]  # (C, T) of the equally long sequences that follow each other
    predictor_N: Tensor  # position that predicts each trained token
    target_N: Tensor
    sequence_N: Tensor  # caller's index of the sequence of each trained token
    offset_N: Tensor  # position of the trained token inside its sequence
    routed_PLK: Tensor | None  # experts as recorded, UNRECORDED at last tokens

    def to(self, device: torch.device) -> PackedBatch:
        """The same in the memory of a device; itself where it lies there."""
        routed_PLK = None if self.routed_PLK is None else self.routed_PLK.to(device)
        return PackedBatch(
            self.ids_1P.to(device),
            self.positions_1P.to(device),
            self.blocks,
            self.predictor_N.to(device),
            self.target_N.to(device),
            self.sequence_N.to(device),
            self.offset_N.to(device),
            routed_PLK,
        )


def micro_batches(sequences: Sequence[TokenSequence], most_tokens: int) -> Iterator[PackedBatch]:
    """Pack whole sequences into micro-batches of at most `most_tokens` positions, or of the longest sequence.

    Raises:
        DataError: the routing of a sequence doesn't have one row less than tokens.
    """
    lengths = [len(s.token_ids) for s in sequences]
    for row in pack(lengths, max([most_tokens, *lengths])):
        yield _build([sequences[i] for i in row])


def _build(sequences: Sequence[TokenSequence]) -> PackedBatch:
    row = PackedRow.build([(s.token_ids, s.mask) for s in sequences])
    (predictor_N,) = np.nonzero(row.labels_T != IGNORE)
    indices_S = np.array([s.index for s in sequences])
    return PackedBatch(
        torch.from_numpy(row.ids_T)[None],
        torch.from_numpy(row.positions_T)[None],
        [(len(list(equal)), length) for length, equal in groupby(len(s.token_ids) for s in sequences)],
        torch.from_numpy(predictor_N),
        torch.from_numpy(row.labels_T[predictor_N]),
        torch.from_numpy(indices_S[row.segments_T[predictor_N]]),
        torch.from_numpy(row.positions_T[predictor_N] + 1),
        _packed_routing(sequences),
    )


def _packed_routing(sequences: Sequence[TokenSequence]) -> Tensor | None:
    """Recorded experts [P, L, K] of a row; None where no sequence has any."""
    recorded = [s.routed_experts for s in sequences if s.routed_experts is not None]
    if not recorded:
        return None
    routed_PLK = np.full((sum(len(s.token_ids) for s in sequences), *recorded[0].shape[1:]), UNRECORDED, dtype=np.int32)
    start = 0
    for s in sequences:
        if s.routed_experts is not None:
            if len(s.routed_experts) != len(s.token_ids) - 1:
                raise DataError(
                    f"{len(s.routed_experts)} rows of routing for {len(s.token_ids)} tokens; the last has none",
                    where=f"sequence {s.index}",
                )
            routed_PLK[start : start + len(s.routed_experts)] = s.routed_experts
        start += len(s.token_ids)
    return torch.from_numpy(routed_PLK)


def _attend_by_blocks(
    module: torch.nn.Module,
    query_1HPd: Tensor,
    key_1HPd: Tensor,
    value_1HPd: Tensor,
    _: None,  # no mask is made for an attention that transformers doesn't know
    *,
    blocks: Sequence[tuple[int, int]],
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers' interface, [1, P, H, d], where each sequence of a row looks at itself alone."""
    outputs_pHd = []
    for query_CHTd, key_CHTd, value_CHTd in zip(
        *(_cut(states_1HPd, blocks) for states_1HPd in (query_1HPd, key_1HPd, value_1HPd)), strict=True
    ):
        mask_TT = _window(query_CHTd.shape[2], sliding_window)
        out_CTHd, _ = sdpa_attention_forward(module, query_CHTd, key_CHTd, value_CHTd, mask_TT, **rest)
        outputs_pHd.append(out_CTHd.flatten(0, 1))
    return torch.cat(outputs_pHd)[None], None


def _cut(states_1HPd: Tensor, blocks: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Views [C, H, T, d] of the blocks."""
    parts_HPd = torch.split(states_1HPd[0], [count * length for count, length in blocks], dim=1)
    return [
        part_HPd.view(len(part_HPd), *block, -1).transpose(0, 1)
        for part_HPd, block in zip(parts_HPd, blocks, strict=True)
    ]


def _window(length: int, sliding_window: int | None) -> Tensor | None:
    """True where a position may look, if that is less than all before it."""
    if sliding_window is None or length <= sliding_window:
        return None
    return torch.ones((length, length), dtype=torch.bool).tril().triu(1 - sliding_window)


AttentionInterface.register(_BY_BLOCKS, _attend_by_blocks)


@contextmanager
def _attending_by_blocks(model: PreTrainedModel) -> Iterator[None]:
    before = model.config._attn_implementation
    if before != "sdpa":  # it may have sinks, or bounds on its scores
        raise ConfigError(
            f"{type(model).__name__} attends by {before!r}, and training knows only 'sdpa'",
            hint="take a base model that transformers computes by scaled_dot_product_attention",
        )
    model.config._attn_implementation = _BY_BLOCKS
    try:
        yield
    finally:
        model.config._attn_implementation = before


def trained_logits(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """Logits [N, V] at the positions that predict trained tokens.

    Raises:
        ConfigError: the model computes attention otherwise than by `scaled_dot_product_attention`.
    """
    with _attending_by_blocks(model):
        hidden_1PD = model.base_model(
            input_ids=batch.ids_1P, position_ids=batch.positions_1P, use_cache=False, blocks=batch.blocks
        ).last_hidden_state
    logits_NV: Tensor = model.get_output_embeddings()(hidden_1PD[0, batch.predictor_N]).float()
    return logits_NV


def trained_logprobs(model: PreTrainedModel, batch: PackedBatch, temperature: float) -> Tensor:
    """Log-probs [N] of the trained tokens at the sampling temperature."""
    logprobs_NV = torch.log_softmax(trained_logits(model, batch) / temperature, dim=-1)
    return logprobs_NV.gather(-1, batch.target_N[:, None])[:, 0]


def token_logprobs(model: PreTrainedModel, batch: PackedBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """The same, and the entropy [N] there."""
    logprobs_NV = torch.log_softmax(trained_logits(model, batch) / temperature, dim=-1)
    entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return logprobs_NV.gather(-1, batch.target_N[:, None])[:, 0], entropy_N
