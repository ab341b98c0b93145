"""Log-probs of trained tokens from packed rows, and nothing for the rest: prompts and padding cost no logits.

Shapes: R rows, T positions of a row, P = R * T positions, N trained tokens in order of (sequence, position), L layers,
K experts of a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rufus_core.data.packing import IGNORE, PackedRow, pack
from rufus_core.errors import DataError
from rufus_core.rollout.routing import UNRECORDED

_ROW_TOKENS = 256  # rows hold at least this many tokens; longer sequences get longer rows


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
    ids_RT: Tensor
    positions_RT: Tensor
    attention_R1TT: Tensor  # bool, True where a position may look
    predictor_N: Tensor  # flat position that predicts each trained token
    target_N: Tensor
    sequence_N: Tensor  # caller's index of the sequence of each trained token
    offset_N: Tensor  # position of the trained token inside its sequence
    routed_PLK: Tensor | None  # experts as recorded, UNRECORDED at last tokens and padding


def micro_batches(sequences: Sequence[TokenSequence], most_tokens: int) -> Iterator[PackedBatch]:
    """Pack whole sequences into rows and rows into micro-batches of about `most_tokens` positions.

    Raises:
        DataError: the routing of a sequence doesn't have one row less than tokens.
    """
    lengths = [len(s.token_ids) for s in sequences]
    if not lengths:
        return
    row_tokens = max(_ROW_TOKENS, *lengths)
    rows = pack(lengths, row_tokens)
    per_batch = max(1, most_tokens // row_tokens)
    for start in range(0, len(rows), per_batch):
        yield _build([[sequences[i] for i in row] for row in rows[start : start + per_batch]])


def _build(groups: Sequence[Sequence[TokenSequence]]) -> PackedBatch:
    width = max(sum(len(s.token_ids) for s in group) for group in groups)
    rows = [PackedRow.build([(s.token_ids, s.mask) for s in group], width) for group in groups]
    positions_RT = np.stack([row.positions_T for row in rows])
    segments_RT = torch.from_numpy(np.stack([row.segments_T for row in rows]))
    labels_RT = np.stack([row.labels_T for row in rows])
    indices = [[s.index for s in group] for group in groups]
    row_N, place_N = np.nonzero(labels_RT != IGNORE)
    same_RTT = segments_RT[:, :, None] == segments_RT[:, None, :]  # padding sees only padding
    causal_TT = torch.ones((width, width), dtype=torch.bool).tril()
    return PackedBatch(
        torch.from_numpy(np.stack([row.ids_T for row in rows])),
        torch.from_numpy(positions_RT),
        (same_RTT & causal_TT)[:, None],
        torch.from_numpy(row_N * width + place_N),
        torch.from_numpy(labels_RT[row_N, place_N]),
        torch.tensor(
            [indices[r][rows[r].segments_T[t]] for r, t in zip(row_N, place_N, strict=True)], dtype=torch.long
        ),
        torch.from_numpy(positions_RT[row_N, place_N] + 1),
        _packed_routing(groups, width),
    )


def _packed_routing(groups: Sequence[Sequence[TokenSequence]], width: int) -> Tensor | None:
    """Recorded experts [P, L, K] of rows of `width`; None where no sequence has any."""
    recorded = [s.routed_experts for group in groups for s in group if s.routed_experts is not None]
    if not recorded:
        return None
    routed_PLK = np.full((len(groups) * width, *recorded[0].shape[1:]), UNRECORDED, dtype=np.int32)
    for row, group in enumerate(groups):
        start = row * width
        for s in group:
            if s.routed_experts is not None:
                if len(s.routed_experts) != len(s.token_ids) - 1:
                    raise DataError(
                        f"{len(s.routed_experts)} rows of routing for {len(s.token_ids)} tokens; the last has none",
                        where=f"sequence {s.index}",
                    )
                routed_PLK[start : start + len(s.routed_experts)] = s.routed_experts
            start += len(s.token_ids)
    return torch.from_numpy(routed_PLK)


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
