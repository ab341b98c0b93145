"""What an engine's decode step costs, by how much runs in it: from a roofline, or from what was measured.

Both say that a step's time is linear in the keys and values that it reads. So the time of many steps with one batch,
whose contexts grow by a token each, has a closed form, and a simulation needs no event for each token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class DecodeCost(Protocol):
    """Seconds of engine time. A step draws one token for each sequence that runs."""

    @property
    def context_seconds(self) -> float:
        """To read the keys and values of one token in a step."""

    @property
    def prefill_seconds(self) -> float:
        """To put one token of a prompt through the model."""

    def batch_seconds(self, batch: int) -> float:
        """Of a step with so many sequences, but for their keys and values. Never falls as the batch grows."""


def decode_seconds(cost: DecodeCost, steps: int, batch: int, context: int) -> float:
    """Of so many steps in a row with an unchanged batch, which holds `context` tokens before the first of them."""
    tokens_read = steps * context + batch * steps * (steps - 1) // 2
    return steps * cost.batch_seconds(batch) + cost.context_seconds * tokens_read


def steps_until(cost: DecodeCost, seconds: float, most: int, batch: int, context: int) -> int:
    """The fewest steps, up to `most`, that take so long or longer."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if decode_seconds(cost, middle, batch, context) < seconds:
            low = middle + 1
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """What an engine was seen to take: a step's constant, and its slopes in sequences and in tokens held."""

    step_seconds: float
    sequence_seconds: float
    context_seconds: float
    prefill_seconds: float

    def batch_seconds(self, batch: int) -> float:
        return self.step_seconds + batch * self.sequence_seconds


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """The larger of reading weights and multiplying by them, then reading keys and values, then a constant.

    Experts are read if any token of the batch goes through them: of E with k chosen for each token independently and
    alike, a batch of B reads E * (1 - (1 - k / E) ** B).
    """

    dense_bytes: float  # of weights that every token goes through
    expert_bytes: float  # of all experts
    num_experts: int
    experts_per_token: int
    flops_per_token: float
    kv_bytes_per_token: float
    bytes_per_second: float  # of the engine's GPUs together, as far as it is reached
    decode_flops_per_second: float  # the same
    prefill_flops_per_second: float
    overhead_seconds: float  # of a step: launches, collectives, scheduling, sampling

    @property
    def context_seconds(self) -> float:
        return self.kv_bytes_per_token / self.bytes_per_second

    @property
    def prefill_seconds(self) -> float:
        return self.flops_per_token / self.prefill_flops_per_second

    def batch_seconds(self, batch: int) -> float:
        read = 1 - (1 - self.experts_per_token / self.num_experts) ** batch
        memory = (self.dense_bytes + self.expert_bytes * read) / self.bytes_per_second
        products = batch * self.flops_per_token / self.decode_flops_per_second
        return max(memory, products) + self.overhead_seconds
