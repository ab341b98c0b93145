"""SGLang's native requests, field by field as it names them (`sglang.srt.managers.io_struct`, `sampling_params`)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from rufus_core.ports.engine import GenerateRequest, SamplingParams
from rufus_core.rollout.server.body import Input, Unsupported, UnsupportedList, neutral, validated
from rufus_core.rollout.server.refusal import Refusal
from rufus_core.types import Json

_DEFAULT_NEW_TOKENS = 128
_GREEDY_BELOW = 1e-6
MOST_SAMPLES = 128  # of one prompt
_PER_ITEM = ("rid", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num")

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Rid = Annotated[str, Field(min_length=1, max_length=256)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]


class Stops(Input):
    """Where a generation ends, and how its text is written: the part that both protocols share."""

    stop: list[StopString] = Field(default_factory=list, max_length=64)
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=1024)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False

    temperature: float = Field(default=1.0, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = -1
    n: int = Field(default=1, ge=1, le=MOST_SAMPLES)

    min_p: Annotated[Json, neutral(0)] = 0
    frequency_penalty: Annotated[Json, neutral(0)] = 0
    presence_penalty: Annotated[Json, neutral(0)] = 0
    repetition_penalty: Annotated[Json, neutral(1)] = 1
    logit_bias: Annotated[Json, neutral(None, {})] = None
    custom_params: Annotated[Json, neutral(None, {})] = None
    regex: Unsupported = None
    ebnf: Unsupported = None
    structural_tag: Unsupported = None
    stop_regex: UnsupportedList = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, value: Json) -> Json:
        return [value] if isinstance(value, str) else value

    @field_validator("top_k")
    @classmethod
    def _some_or_all(cls, value: int) -> int:
        if value == -1 or value >= 1:
            return value
        raise ValueError("Input should be -1 (all tokens) or at least 1")

    def params(self, seed: int, max_new_tokens: int, eos_ids: Sequence[int], vocab_size: int) -> SamplingParams:
        stops = dict.fromkeys([*self.stop_token_ids, *(() if self.ignore_eos else eos_ids)])
        return SamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=0.0 if self.temperature < _GREEDY_BELOW else self.temperature,
            top_p=self.top_p,
            top_k=self.top_k if self.top_k < vocab_size else -1,
            stop_token_ids=tuple(stops),
            sampling_seed=seed,
        )


class SamplingInput(Stops):
    max_new_tokens: int | None = Field(default=None, ge=1)
    sampling_seed: int | None = Field(default=None, ge=0, lt=2**63)
    min_new_tokens: Annotated[Json, neutral(0)] = 0
    json_schema: Unsupported = None
    spaces_between_special_tokens: Annotated[Json, neutral(True)] = True
    ignored: ClassVar[frozenset[str]] = frozenset({"stream_interval"})

    def new_tokens(self, room: int) -> int:
        """Null asks for all there is room for, as in SGLang; without the field it is at most 128."""
        if "max_new_tokens" in self.model_fields_set:
            return room if self.max_new_tokens is None else self.max_new_tokens
        return min(_DEFAULT_NEW_TOKENS, room)


class GenerateInput(Input):
    """One prompt of `/generate`."""

    rid: Rid | None = None
    text: str | None = None
    input_ids: list[TokenId] | None = None
    sampling_params: SamplingInput = Field(default_factory=SamplingInput)
    return_logprob: bool = False
    logprob_start_len: int = Field(default=-1, ge=-1)
    top_logprobs_num: int = Field(default=0, ge=0, le=1024)
    return_text_in_logprobs: bool = False
    return_routed_experts: bool = False
    routed_experts_start_len: int = Field(default=0, ge=0)
    return_prompt_token_ids: bool = False
    stream: bool = False

    input_embeds: UnsupportedList = None
    image_data: UnsupportedList = None
    video_data: UnsupportedList = None
    audio_data: UnsupportedList = None
    token_ids_logprob: UnsupportedList = None
    session_params: Annotated[Json, neutral(None, {})] = None
    lora_path: Unsupported = None
    custom_logit_processor: Unsupported = None
    return_hidden_states: Annotated[Json, neutral(False)] = False
    return_sampling_mask: Annotated[Json, neutral(False)] = False
    return_entropy: Annotated[Json, neutral(False)] = False
    max_thinking_tokens: Unsupported = None
    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            "log_metrics", "no_logs", "custom_labels", "priority", "session_id", "conversation_id",
            "routing_key", "extra_key", "cache_salt", "modalities", "routed_dp_rank", "data_parallel_rank",
            "bootstrap_host", "bootstrap_port", "bootstrap_room", "require_reasoning", "background",
        }
    )  # fmt: skip

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("give either text or input_ids")
        return self


class AbortInput(Input):
    rid: str = ""
    abort_all: bool = False
    ignored: ClassVar[frozenset[str]] = frozenset({"finished_reason", "abort_message"})

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.rid and not self.abort_all:
            raise ValueError("give a rid, or abort_all")
        return self


class PauseInput(Input):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueInput(Input):
    ignored: ClassVar[frozenset[str]] = frozenset({"torch_empty_cache"})


class FlushInput(Input):
    ignored: ClassVar[frozenset[str]] = frozenset({"timeout"})


class UpdateWeightsInput(Input):
    model_path: str = Field(min_length=1, max_length=4096)
    weight_version: str | None = Field(default=None, min_length=1, max_length=256)
    load_format: Annotated[Json, neutral(None, "auto", "safetensors")] = None
    abort_all_requests: bool = False
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"is_async", "torch_empty_cache", "keep_pause", "recapture_cuda_graph", "token_step", "flush_cache"}
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine can take."""

    context_length: int
    vocab_size: int
    eos_ids: tuple[int, ...]


def generate_inputs(body: dict[str, Json], most: int) -> tuple[list[GenerateInput], bool]:
    """The prompts of a body, and whether it was a batch. Raises Refusal; `most` samples may be asked for in all.

    In a batch the fields of `_PER_ITEM` may be lists, one entry a prompt, or one value for all. One rid is a prefix.
    """
    prompts = body.get("input_ids") if body.get("text") is None else body["text"]
    nested = isinstance(prompts, list) and (body.get("text") is not None or (prompts and isinstance(prompts[0], list)))
    if not nested or (body.get("text") is not None and body.get("input_ids") is not None):
        return _counted([validated(GenerateInput, body)], most), False
    if not prompts:
        raise Refusal("a batch without prompts", param="text")
    if len(prompts) > most:  # before any work is done for them
        raise Refusal(f"{len(prompts)} prompts in one batch: at most {most}", param=_prompts_field(body))
    for field in _PER_ITEM:
        if isinstance(body.get(field), list) and len(body[field]) != len(prompts):
            raise Refusal(f"{len(body[field])} entries for {len(prompts)} prompts", param=field)
    items = []
    for i, prompt in enumerate(prompts):
        item = dict(body) | {_prompts_field(body): prompt}
        for field in _PER_ITEM:
            if isinstance(body.get(field), list):
                item[field] = body[field][i]
        if isinstance(body.get("rid"), str):
            item["rid"] = f"{body['rid']}_{i}"
        items.append(validated(GenerateInput, item, _of_item(i)))
    return _counted(items, most), True


def _counted(items: list[GenerateInput], most: int) -> list[GenerateInput]:
    if (count := sum(item.sampling_params.n for item in items)) > most:
        raise Refusal(f"{count} samples in one request: at most {most}", param="sampling_params.n")
    return items


def _prompts_field(body: dict[str, Json]) -> str:
    return "input_ids" if body.get("text") is None else "text"


def _of_item(i: int) -> Callable[[str], str]:
    return lambda field: f"{field} (prompt {i})"


def engine_requests(item: GenerateInput, input_ids: list[int], limits: Limits) -> list[GenerateRequest]:
    """The `n` requests of one prompt; samples after the first draw from the seeds that follow. Raises Refusal."""
    room = check_prompt(input_ids, limits.context_length, "input_ids" if item.text is None else "text")
    if max(input_ids) >= limits.vocab_size:
        what = f"{max(input_ids)} is not in the vocabulary, whose ids go from 0 to {limits.vocab_size - 1}"
        raise Refusal(what, param="input_ids")
    sampling = item.sampling_params
    max_new_tokens = sampling.new_tokens(room)
    check_new_tokens(max_new_tokens, len(input_ids), limits.context_length, "sampling_params.max_new_tokens")
    if item.return_logprob and item.logprob_start_len >= len(input_ids):
        what = f"{item.logprob_start_len} lies behind the prompt of {len(input_ids)} tokens"
        raise Refusal(what, param="logprob_start_len")
    if item.return_routed_experts and item.routed_experts_start_len > len(input_ids):
        what = f"{item.routed_experts_start_len} lies behind the prompt of {len(input_ids)} tokens"
        raise Refusal(what, param="routed_experts_start_len")
    from_start = item.return_logprob and item.logprob_start_len >= 0
    rid, seed = item.rid or secrets.token_hex(16), fixed_seed(sampling.sampling_seed)
    return [
        GenerateRequest(
            rid=rid if sampling.n == 1 else f"{rid}_{i}",
            input_ids=input_ids,
            sampling_params=sampling.params((seed + i) % 2**63, max_new_tokens, limits.eos_ids, limits.vocab_size),
            return_routed_experts=item.return_routed_experts,
            input_logprobs_from=item.logprob_start_len if from_start else None,
            top_logprobs=item.top_logprobs_num if item.return_logprob else 0,
        )
        for i in range(sampling.n)
    ]


def fixed_seed(seed: int | None) -> int:
    return secrets.randbits(63) if seed is None else seed


def check_prompt(input_ids: Sequence[int], context_length: int, param: str) -> int:
    """How many tokens there is room for behind a prompt. Raises Refusal."""
    if not input_ids:
        raise Refusal("an empty prompt can't be continued", param=param)
    if len(input_ids) >= context_length:
        what = f"a prompt of {len(input_ids)} tokens exceeds the context length of {context_length} tokens"
        raise Refusal(what, param=param)
    return context_length - len(input_ids)


def check_new_tokens(wanted: int, prompt_tokens: int, context_length: int, param: str) -> None:
    """Raises Refusal where prompt and completion don't fit together, as SGLang does."""
    if prompt_tokens + wanted > context_length:
        raise Refusal(
            f"a total of {prompt_tokens + wanted} tokens, {prompt_tokens} of the prompt and {wanted} to sample, exceeds"
            f" the context length of {context_length} tokens",
            param=param,
        )
