"""Token ids in, token ids and log-probs out (SGLang's native `/generate`); models that continue a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from rufus_core.types import Message

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """SGLang's sampling parameters (the subset the recipe uses)."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()
    sampling_seed: int = 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What to continue, and what to report beside the sampled ids and their log-probs.

    `input_logprobs_from` is the first prompt position whose log-prob is reported (SGLang's `logprob_start_len`; None:
    none); `top_logprobs` how many of the most likely tokens are reported at each sampled position.
    """

    rid: str
    input_ids: Sequence[int]
    sampling_params: SamplingParams
    return_routed_experts: bool = False
    input_logprobs_from: int | None = None
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """`output_ids` includes the stop token where one was sampled; `output_logprobs` has one entry for each id.

    `routed_experts` is [prompt + output - 1, layers, experts per token], int32, zeros in dense layers: the last token
    is never put through the model. `input_logprobs` starts at the position asked for and is None at position 0, which
    nothing predicts. `cached_tokens` of the prompt weren't computed again.
    """

    rid: str
    output_ids: list[int]
    output_logprobs: list[float]
    finish_reason: Literal["stop", "length", "abort"]
    weight_version: str
    cached_tokens: int = 0
    routed_experts: NDArray[np.int32] | None = None
    input_logprobs: list[float | None] | None = None
    top_logprobs: list[list[tuple[float, int]]] | None = None


class Engine(Protocol):
    """Token ids in; token ids and log-probs out (SGLang's native `/generate`)."""

    @property
    def context_length(self) -> int: ...

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """Results in the order of the requests. Raises EngineError for input that can't be served."""
        ...


class PolicyWeights(Protocol):
    """Weights that an engine takes over. Every rank of a training calls these methods at once."""

    def hf_model(self) -> PreTrainedModel:
        """As a Hugging Face model, which may be the one that is trained: to be read at once."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors under Hugging Face's names, one after the other."""
        ...

    def save_policy(self, folder: Path) -> None:
        """As a Hugging Face directory, which rank 0 writes."""
        ...


class RolloutEngine(Engine, Protocol):
    """An engine that follows a policy while it is trained, and may share its memory with the trainer."""

    def update_weights(self, policy: PolicyWeights, version: str) -> None:
        """Sample by these weights from now on, and say so as `weight_version`.

        Raises InfrastructureError where an engine can't be brought to them.
        """
        ...

    def release_memory(self) -> None:
        """Leave the memory to the trainer; until `resume_memory` nothing is generated (SLM-10)."""
        ...

    def resume_memory(self) -> None:
        """Take the memory again. The weights have to be updated before anything is generated."""
        ...


class ChatModel(Protocol):
    """Continues a conversation: a teacher, an assistant or a user that a model plays."""

    @property
    def identity(self) -> str: ...

    def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> str:
        """The next message's text, without reasoning. Raises InfrastructureError when none can be had."""
        ...
