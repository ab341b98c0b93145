"""Groups sequences into the batches of optimizer steps; long ones go to smaller batches (SFT-07, SLM-03)."""

from __future__ import annotations

from collections.abc import Sequence

from rufus_core.errors import DataError


def batches(
    lengths: Sequence[int],
    sequences_per_batch: int,
    long_tokens: int | None = None,
    token_budget: int | None = None,
) -> list[list[int]]:
    """Batches of indices into `lengths`, which is given in the order of the epoch. Every index occurs once.

    A sequence of `long_tokens` or more joins a batch of long ones only, which is full at `token_budget` tokens or
    `sequences_per_batch` sequences, whichever comes first. Batches follow the epoch's order by their first sequence.
    Of each kind the last batch may be smaller.

    Raises:
        DataError: a long sequence exceeds the budget.
    """
    full: list[list[int]] = []
    short: list[int] = []
    long: list[int] = []
    long_total = 0
    for index, length in enumerate(lengths):
        if long_tokens is None or length < long_tokens:
            short.append(index)
            if len(short) == sequences_per_batch:
                full.append(short)
                short = []
            continue
        if token_budget is not None and length > token_budget:
            raise DataError(
                f"a sequence of {length} tokens exceeds the batch's budget of {token_budget}",
                where=f"sequence {index}",
                hint="raise the budget or lower the cap on samples",
            )
        over_budget = token_budget is not None and long_total + length > token_budget
        if len(long) == sequences_per_batch or over_budget:
            full.append(long)
            long, long_total = [], 0
        long.append(index)
        long_total += length
    return sorted((batch for batch in (*full, short, long) if batch), key=lambda batch: batch[0])
