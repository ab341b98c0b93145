"""SGLang's native `/generate` from the client's side: a request as JSON, and what a reply says.

`rufus_core.rollout.server` is the other side of the same protocol, as the embedded engine serves it.
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rufus_core.errors import EngineError
from rufus_core.ports.engine import GenerateRequest, GenerateResult
from rufus_core.rollout.sglang.facts import PolicyFacts
from rufus_core.types import Json

_SEEDS = 2**63
_REASONS: dict[str, Literal["stop", "length", "abort"]] = {"stop": "stop", "length": "length", "abort": "abort"}


def request_body(request: GenerateRequest, rid: str, context_length: int) -> dict[str, Json]:
    """`rid` is its name on the server. No more tokens are asked for than there is room for behind the prompt.

    Where a request has stop tokens, SGLang also stops at those of the model's own configuration; it can't be asked for
    the one without the other.
    """
    params = request.sampling_params
    room = context_length - len(request.input_ids)
    start = request.input_logprobs_from
    return {
        "rid": rid,
        "input_ids": list(request.input_ids),
        "sampling_params": {
            "max_new_tokens": min(params.max_new_tokens, room),
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "stop_token_ids": list(params.stop_token_ids),
            "ignore_eos": not params.stop_token_ids,
            "sampling_seed": params.sampling_seed % _SEEDS,
        },
        "return_logprob": True,
        # One earlier than asked for: the first of a reply is always null.
        "logprob_start_len": -1 if start is None else max(start - 1, 0),
        "top_logprobs_num": request.top_logprobs,
        "return_routed_experts": request.return_routed_experts,
        "stream": False,
    }


def result_of(reply: Json, request: GenerateRequest, facts: PolicyFacts) -> GenerateResult:
    """Raises EngineError for a reply that isn't what was asked for."""
    try:
        return _result(reply, request, facts)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        hint = "is it SGLang 0.5.23, and the policy that it serves this one?"
        raise EngineError(
            f"the server's reply can't be used: {reason}", where=f"request {request.rid}", hint=hint
        ) from error


def _result(reply: Json, request: GenerateRequest, facts: PolicyFacts) -> GenerateResult:
    meta = reply["meta_info"]
    output_ids = [_whole(token) for token in reply["output_ids"]]
    logprobs = [float(entry[0]) for entry in meta["output_token_logprobs"]]
    if len(logprobs) != len(output_ids):
        raise ValueError(f"{len(logprobs)} log-probs for {len(output_ids)} tokens")
    reason = _REASONS[meta["finish_reason"]["type"]]
    num_tokens = max(len(request.input_ids) + len(output_ids) - 1, 0)
    return GenerateResult(
        rid=request.rid,
        output_ids=output_ids,
        output_logprobs=logprobs,
        finish_reason=reason,
        weight_version=str(meta["weight_version"]),
        cached_tokens=int(meta.get("cached_tokens") or 0),
        routed_experts=_routing(meta, num_tokens, facts, reason) if request.return_routed_experts else None,
        input_logprobs=_input_logprobs(meta, request),
        top_logprobs=_top_logprobs(meta) if request.top_logprobs else None,
    )


def _whole(token: Json) -> int:
    if type(token) is not int:
        raise ValueError(f"{token!r} is no token id")
    return token


def _input_logprobs(meta: Json, request: GenerateRequest) -> list[float | None] | None:
    start = request.input_logprobs_from
    if start is None:
        return None
    entries = meta.get("input_token_logprobs") or []
    known = [None if entry[0] is None else float(entry[0]) for entry in entries]
    wanted = known[1:] if start else known
    if len(wanted) != max(len(request.input_ids) - start, 0):
        raise ValueError(f"{len(wanted)} log-probs for {len(request.input_ids) - start} tokens of the prompt")
    return wanted


def _top_logprobs(meta: Json) -> list[list[tuple[float, int]]]:
    return [[(float(entry[0]), _whole(entry[1])) for entry in top or []] for top in meta["output_top_logprobs"]]


def _routing(meta: Json, num_tokens: int, facts: PolicyFacts, reason: str) -> NDArray[np.int32]:
    """[tokens, layers, experts a token]; none where a request was aborted before its prompt was computed."""
    encoded = meta.get("routed_experts")
    shape = (facts.num_layers, facts.experts_per_token)
    if encoded is None and reason == "abort":
        return np.zeros((0, *shape), dtype=np.int32)
    if encoded is None:
        raise ValueError("it has no routing: was the server started with --enable-return-routed-experts?")
    try:
        routed = np.frombuffer(base64.b64decode(encoded, validate=True), dtype="<i4")
    except binascii.Error as error:
        raise ValueError(f"its routing is no base64: {error}") from error
    if routed.size != num_tokens * shape[0] * shape[1] and reason != "abort":
        raise ValueError(f"its routing has {routed.size} entries for {num_tokens} tokens of {shape[0]} layers")
    return routed.reshape(-1, *shape).astype(np.int32)
