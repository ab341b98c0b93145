"""How the sequences of a micro-batch lie in the tensors that Megatron-core is given.

With TransformerEngine they lie end to end in one row and attention is told where each begins. Megatron's own attention
knows no such rows: there each sequence has a row of its own, filled up behind its end, where nothing before can look.

Shapes: P positions of the micro-batch, B rows, T positions of a row, L layers, K experts of a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rufus_core.rollout.routing import UNRECORDED
from rufus_core.training.forward import PackedBatch


@dataclass(frozen=True, slots=True)
class Rows:
    ids_BT: Tensor
    positions_BT: Tensor
    flat_P: Tensor  # where each position of the micro-batch lies in [T * B], Megatron's order of tokens
    packed: Any = None  # Megatron's PackedSeqParams

    def predictors(self, batch: PackedBatch) -> Tensor:
        """Where the trained tokens are predicted, in [T * B]."""
        return self.flat_P[batch.predictor_N]

    def routing(self, batch: PackedBatch) -> Tensor | None:
        """Recorded experts [T * B, L, K]; UNRECORDED where rows were filled up."""
        if batch.routed_PLK is None:
            return None
        flat_TBLK = batch.routed_PLK.new_full((self.ids_BT.numel(), *batch.routed_PLK.shape[1:]), UNRECORDED)
        flat_TBLK[self.flat_P] = batch.routed_PLK
        return flat_TBLK


def padded_rows(batch: PackedBatch, multiple: int) -> Rows:
    """A row for each sequence, all of one length that is a multiple of `multiple`."""
    lengths = [length for count, length in batch.blocks for _ in range(count)]
    width = -(-max(lengths) // multiple) * multiple
    row_P = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    column_P = batch.positions_1P[0]
    ids_BT = torch.zeros((len(lengths), width), dtype=torch.long)
    ids_BT[row_P, column_P] = batch.ids_1P[0]
    positions_BT = torch.arange(width).expand(len(lengths), -1).contiguous()
    return Rows(ids_BT, positions_BT, column_P * len(lengths) + row_P)


def packed_row(batch: PackedBatch, multiple: int) -> Rows:
    """One row; what fills it up to a multiple of `multiple` is a sequence of its own."""
    from megatron.core.packed_seq_params import PackedSeqParams

    size = batch.ids_1P.shape[1]
    filling = -size % multiple
    lengths = [length for count, length in batch.blocks for _ in range(count)] + [filling] * bool(filling)
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    packed = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=starts,
        cu_seqlens_kv=starts,
        max_seqlen_q=max(lengths),
        max_seqlen_kv=max(lengths),
    )
    ids_BT, positions_BT = (
        torch.nn.functional.pad(row_1P.long(), (0, filling)) for row_1P in (batch.ids_1P, batch.positions_1P)
    )
    return Rows(ids_BT, positions_BT, torch.arange(size), packed)
