"""What every engine refuses before it does anything."""

from __future__ import annotations

import math

from rufus_core.errors import EngineError
from rufus_core.ports.engine import GenerateRequest, SamplingParams

_COLDEST = 1e-6  # temperature but for 0, below which logits leave their range


def check_request(request: GenerateRequest, context_length: int, vocab_size: int, *, has_experts: bool) -> None:
    """Raises EngineError for what can't be served."""
    ids, where = request.input_ids, f"request {request.rid}"
    if not 0 < len(ids) < context_length:
        raise EngineError(
            f"a prompt of {len(ids)} tokens can't be continued",
            where=where,
            hint=f"the context holds {context_length} tokens",
        )
    if min(ids) < 0 or max(ids) >= vocab_size:
        outside = next(i for i in ids if not 0 <= i < vocab_size)
        raise EngineError(
            f"token id {outside} is not in the vocabulary", where=where, hint=f"ids go from 0 to {vocab_size - 1}"
        )
    if request.return_routed_experts and not has_experts:
        raise EngineError("this model has no experts, and so no routing to return", where=where)
    if fault := _fault(request.sampling_params):
        raise EngineError(fault, where=where)


def _fault(params: SamplingParams) -> str | None:
    """What is wrong with sampling parameters."""
    if params.max_new_tokens < 1:
        return f"max_new_tokens must be at least 1, not {params.max_new_tokens}"
    if not (params.temperature == 0 or _COLDEST <= params.temperature < math.inf):
        return f"temperature must be 0 or a number from {_COLDEST} on, not {params.temperature}"
    if not 0 < params.top_p <= 1:
        return f"top_p must be above 0 and at most 1, not {params.top_p}"
    if params.top_k < 1 and params.top_k != -1:
        return f"top_k must be at least 1, or -1 for all tokens, not {params.top_k}"
    if not -(2**63) <= params.sampling_seed < 2**64:
        return f"sampling_seed must fit into 64 bits, not {params.sampling_seed}"
    return None
