"""Log-probs of trained tokens from packed rows, and nothing for the rest: prompts and padding cost no logits.

Shapes: R rows, T positions of a row, N trained tokens in order of (sequence, position).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rufus_core.data.packing import pack

_ROW_TOKENS = 256  # rows hold at least this many tokens; longer sequences get longer rows


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids of one sequence, 1 in `mask` where a token is trained, and the index the caller knows it by."""

    index: int
    token_ids: Sequence[int]
    mask: Sequence[int]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    ids_RT: Tensor
    positions_RT: Tensor
    attention_R1TT: Tensor  # bool, True where a position may look
    predictor_N: Tensor  # flat position that predicts each trained token
    target_N: Tensor
    sequence_N: Tensor  # caller's index of the sequence of each trained token
    offset_N: Tensor  # position of the trained token inside its sequence


def micro_batches(sequences: Sequence[TokenSequence], most_tokens: int) -> Iterator[PackedBatch]:
    """Pack whole sequences into rows and rows into micro-batches of about `most_tokens` positions."""
    lengths = [len(s.token_ids) for s in sequences]
    if not lengths:
        return
    row_tokens = max(_ROW_TOKENS, *lengths)
    rows = pack(lengths, row_tokens)
    per_batch = max(1, most_tokens // row_tokens)
    for start in range(0, len(rows), per_batch):
        yield _build([[sequences[i] for i in row] for row in rows[start : start + per_batch]])


def _build(rows: Sequence[Sequence[TokenSequence]]) -> PackedBatch:
    width = max(sum(len(s.token_ids) for s in row) for row in rows)
    ids_RT = torch.zeros((len(rows), width), dtype=torch.long)
    positions_RT = torch.zeros_like(ids_RT)
    segments_RT = torch.zeros_like(ids_RT)  # 0 is padding, which sees only padding
    predictor, target, sequence, offset = [], [], [], []
    for r, row in enumerate(rows):
        at = 0
        for k, s in enumerate(row, start=1):
            length = len(s.token_ids)
            ids_RT[r, at : at + length] = torch.tensor(s.token_ids)
            positions_RT[r, at : at + length] = torch.arange(length)
            segments_RT[r, at : at + length] = k
            for t in range(1, length):  # a sequence's first token is nobody's target
                if s.mask[t]:
                    predictor.append(r * width + at + t - 1)
                    target.append(s.token_ids[t])
                    sequence.append(s.index)
                    offset.append(t)
            at += length
    same_RTT = segments_RT[:, :, None] == segments_RT[:, None, :]
    causal_TT = torch.ones((width, width), dtype=torch.bool).tril()
    return PackedBatch(
        ids_RT,
        positions_RT,
        (same_RTT & causal_TT)[:, None],
        torch.tensor(predictor, dtype=torch.long),
        torch.tensor(target, dtype=torch.long),
        torch.tensor(sequence, dtype=torch.long),
        torch.tensor(offset, dtype=torch.long),
    )


def trained_logits(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """Logits [N, V] at the positions that predict trained tokens."""
    hidden_RTD = model.base_model(
        input_ids=batch.ids_RT,
        position_ids=batch.positions_RT,
        attention_mask=batch.attention_R1TT,
        use_cache=False,
    ).last_hidden_state
    selected_ND = hidden_RTD.flatten(0, 1)[batch.predictor_N]
    logits_NV: Tensor = model.get_output_embeddings()(selected_ND).float()
    return logits_NV


def token_logprobs(model: PreTrainedModel, batch: PackedBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs [N] of the trained tokens and the entropy [N] there, both at the sampling temperature."""
    logprobs_NV = torch.log_softmax(trained_logits(model, batch) / temperature, dim=-1)
    entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return logprobs_NV.gather(-1, batch.target_N[:, None])[:, 0], entropy_N
