"""What the training loops ask of whatever holds the policy: torch in one process or a few, Megatron-core on many GPUs.

Every method is called by all ranks at once with the same arguments; a trainer shares the work out itself. So a loop
says nothing of how a policy is cut, and all ranks see what one process would.

Shapes: N trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from rufus_core.algorithms.losses import LossOutput
from rufus_core.data.chat import ChatFormat
from rufus_core.ports.engine import PolicyWeights
from rufus_core.training.forward import PackedBatch, TokenSequence
from rufus_core.training.ranks import Ranks
from rufus_core.training.state import Restorable


@dataclass(frozen=True, slots=True)
class Scored:
    """A micro-batch and what the policy says of its trained tokens, at the temperature asked for."""

    batch: PackedBatch
    logprobs_N: Tensor  # carries the gradient
    entropy_N: Tensor | None = None  # where asked for
    reference_N: Tensor | None = None  # the reference policy's log-probs, where asked for


Loss = Callable[[Scored], LossOutput]  # of a micro-batch: its share of the optimizer batch's loss


class Trainer(Restorable, PolicyWeights, Protocol):
    """A policy that is trained, and its optimizer."""

    @property
    def ranks(self) -> Ranks: ...

    @property
    def chat(self) -> ChatFormat: ...

    @property
    def context_length(self) -> int: ...

    @property
    def has_routers(self) -> bool:
        """Whether recorded routing can be replayed in it."""
        ...

    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float) -> list[list[float]]:
        """Log-prob of every trained token, aligned with `token_ids`; 0 elsewhere."""
        ...

    def accumulate(
        self,
        sequences: Sequence[TokenSequence],
        loss: Loss,
        temperature: float = 1.0,
        *,
        entropy: bool = False,
        reference: bool = False,
    ) -> list[LossOutput]:
        """Add the gradient of the sum of `loss` over micro-batches of whole sequences. Returns those of all ranks.

        Where routing was recorded it is replayed, and the metric `routing_agreement` says how much of it the policy
        would have chosen by itself.
        """
        ...

    def step(self, lr: float, grad_clip: float) -> float:
        """Clip, take an optimizer step and clear the gradients. Returns their norm before clipping."""
        ...

    def discard(self) -> None:
        """Clear the gradients without a step."""
        ...

    def save_policy(self, folder: Path) -> None:
        """Write the policy as a Hugging Face directory; rank 0 does. Raises InfrastructureError where it can't."""
        ...

    def end(self) -> None:
        """The training is over: the policy samples and scores from now on."""
        ...
