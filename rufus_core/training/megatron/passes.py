"""Passes of micro-batches through the stages of a pipeline, forward and where told so backward.

Every data parallel rank passes as many micro-batches as every other, since the experts of one may serve the tokens of
another; who has fewer passes empty ones, which no loss sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from rufus_core.data.packing import pack
from rufus_core.training.forward import PackedBatch, TokenSequence, micro_batches
from rufus_core.training.megatron.layout import has_transformer_engine
from rufus_core.training.megatron.rows import packed_row, padded_rows
from rufus_core.training.megatron.vocab import vocab_logprobs

ResultT = TypeVar("ResultT")
Before = Callable[[int], None]  # a micro-batch by its number, just before it goes forward
Score = Callable[[int, Tensor, Tensor], tuple[Tensor, ResultT]]  # number, log-probs [N], entropy [N]: loss and result


class Shares:
    """This rank's micro-batches of sequences that all ranks were given."""

    def __init__(self, sequences: Sequence[TokenSequence], most_tokens: int) -> None:
        rank, size = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
        multiple = parallel_state.get_tensor_model_parallel_world_size()
        shares = [sequences[start::size] for start in range(size)]
        count = max(_num_micro_batches(share, most_tokens) for share in shares)
        self.batches = list(micro_batches(shares[rank], most_tokens)) if shares[rank] else []
        self.batches += [_empty(multiple) for _ in range(count - len(self.batches))]
        lay_out = packed_row if has_transformer_engine() else padded_rows
        self.rows = [lay_out(batch, multiple) for batch in self.batches]
        self.replayed = any(s.routed_experts is not None for s in sequences)

    @property
    def predictors(self) -> tuple[list[Tensor], list[int]]:
        """Where each micro-batch predicts its trained tokens, and among how many tokens."""
        places = [rows.predictors(batch) for rows, batch in zip(self.rows, self.batches, strict=True)]
        return places, [rows.ids_BT.numel() for rows in self.rows]


def _num_micro_batches(sequences: Sequence[TokenSequence], most_tokens: int) -> int:
    lengths = [len(s.token_ids) for s in sequences]
    return sum(1 for _ in pack(lengths, max([most_tokens, *lengths]))) if lengths else 0


def _empty(num_tokens: int) -> PackedBatch:
    (batch,) = micro_batches([TokenSequence(0, [0] * num_tokens, [0] * num_tokens)], num_tokens)
    return batch


def run_passes(
    model: nn.Module,
    shares: Shares,
    score: Score[ResultT],
    *,
    temperature: float,
    vocab_size: int,
    backward: bool,
    before: Before = lambda _: None,
) -> list[ResultT]:
    """Pass all micro-batches. Returns what `score` makes of each that has trained tokens, on the last stage alone."""

    def forward(numbers: Iterator[int], stage: nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        number = next(numbers)
        before(number)
        rows = shares.rows[number]
        output = stage(
            input_ids=rows.ids_BT.to(device),
            position_ids=rows.positions_BT.to(device),
            attention_mask=None,
            packed_seq_params=rows.packed,
        )
        return output, partial(_scored, number)

    def _scored(number: int, logits_BTv: Tensor) -> tuple[Tensor, Tensor, list[ResultT]]:
        batch = shares.batches[number]
        logits_Nv = _at(logits_BTv, shares.rows[number].predictors(batch))
        if not len(batch.target_N):
            return logits_Nv.sum(), no_tokens, []
        logprobs_N, entropy_N = vocab_logprobs(logits_Nv / temperature, batch.target_N.to(device), vocab_size)
        loss, result = score(number, logprobs_N.cpu(), entropy_N.cpu())
        return loss.to(device), no_tokens, [result]

    if not shares.batches:
        return []
    device = next(model.parameters()).device
    no_tokens = torch.tensor(0, dtype=torch.int, device=device)  # what Megatron would divide by: losses are whole
    with torch.set_grad_enabled(backward):
        results = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(range(len(shares.batches))),
            model=[model],
            num_microbatches=len(shares.batches),
            seq_length=max(rows.ids_BT.shape[1] for rows in shares.rows),
            micro_batch_size=1,
            forward_only=not backward,
        )
    return [result for of_batch in results for result in of_batch]


def _at(logits_BTv: Tensor, flat_N: Tensor) -> Tensor:
    num_rows = len(logits_BTv)
    flat_N = flat_N.to(logits_BTv.device)
    return logits_BTv[flat_N % num_rows, flat_N // num_rows]
