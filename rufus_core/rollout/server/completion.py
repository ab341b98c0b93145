"""One request from submission to end, with its text: decoding as it grows, stop strings, why it ended."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace

from rufus_core.ports.engine import GenerateResult
from rufus_core.rollout.server.service import EngineService, Generation, WeightSpan
from rufus_core.types import Json

Decode = Callable[[Sequence[int]], str]
_MOST_BYTES = 4  # of a character in UTF-8, and so the most tokens


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What the engine, which knows ids only, can't do: strings that end a generation, and how text is written."""

    decode: Decode
    stop: tuple[str, ...] = ()
    keep_stop: bool = False  # leave the stop token or string in the text


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A generation so far. `text` takes back nothing that an earlier snapshot showed, but for bytes that are no text.

    `result` and `finish_reason` (SGLang's object) come with the last one, cut at the stop string if there was one.
    """

    text: str
    output_ids: list[int]
    output_logprobs: list[float]
    spans: list[WeightSpan]
    seconds: float
    finish_reason: dict[str, Json] | None = None
    result: GenerateResult | None = None


class GrowingText:
    """Decodes ids as they come. A character whose last bytes are missing is held back, not bytes that are no text."""

    def __init__(self, decode: Decode) -> None:
        self._decode, self._ids = decode, list[int]()
        self._context = self._done = 0  # what comes next is decoded behind the ids from `context` to `done`
        self.text = ""

    def push(self, ids: Sequence[int]) -> str:
        """What these ids add to the text."""
        self._ids += ids
        before = self._decode(self._ids[self._context : self._done])
        now = self._decode(self._ids[self._context :])
        if now.endswith("\ufffd") and len(self._ids) - self._done < _MOST_BYTES:
            return ""
        self._context, self._done = self._done, len(self._ids)
        new = now[len(before) :]
        self.text += new
        return new


def find_stop(text: str, stops: Sequence[str], start: int) -> str | None:
    """The stop string that begins first of those that end behind `start`."""
    found = ((text.find(stop, max(0, start - len(stop) + 1)), stop) for stop in stops)
    return min((each for each in found if each[0] >= 0), default=(0, None))[1]


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of a stop string."""
    lengths = (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
    return max(lengths, default=0)


async def snapshots(
    service: EngineService, generation: Generation, options: TextOptions, growing: bool
) -> AsyncGenerator[Snapshot]:
    """A generation's snapshots: with each step's tokens if `growing`, else the last alone.

    Raises EngineError when the engine failed.
    """
    text = GrowingText(options.decode)
    ids: list[int] = []
    logprobs: list[float] = []
    matched: str | None = None
    result: GenerateResult | None = None
    async for news in generation.tokens():
        result = news.result
        ended_by_id = result is not None and result.finish_reason == "stop"
        fresh = zip(news.token_ids, news.logprobs, strict=True) if generation.every_token and not matched else ()
        for token, logprob in list(fresh)[: -1 if ended_by_id else None]:
            ids.append(token)
            logprobs.append(logprob)
            seen = len(text.text)
            if text.push([token]) and (matched := find_stop(text.text, options.stop, seen)):
                service.abort([generation])
                break
        if growing and not matched and result is None:
            shown = text.text[: len(text.text) - held_back(text.text, options.stop)]
            spans = _cut(generation.spans, len(ids))
            yield Snapshot(shown, list(ids), list(logprobs), spans, time.monotonic() - generation.started)
    assert result is not None  # what `tokens` ends with
    if matched is None:
        yield _last(generation, result, options)
        return
    # The engine may have gone on for a step or two before it heard of the stop string.
    result = _cut_result(result, len(generation.request.input_ids), len(ids))
    said = text.text[: text.text.index(matched) + (len(matched) if options.keep_stop else 0)]
    reason = {"type": "stop", "matched": matched}
    spans = _cut(generation.spans, len(ids))
    yield Snapshot(said, ids, logprobs, spans, time.monotonic() - generation.started, reason, result)


async def last(service: EngineService, generation: Generation, options: TextOptions) -> Snapshot:
    """A generation's end."""
    [snapshot] = [each async for each in snapshots(service, generation, options, growing=False)]
    return snapshot


def _last(generation: Generation, result: GenerateResult, options: TextOptions) -> Snapshot:
    reason: dict[str, Json]
    if result.finish_reason == "stop":
        text = options.decode(result.output_ids if options.keep_stop else result.output_ids[:-1])
        reason = {"type": "stop", "matched": result.output_ids[-1]}
    else:
        text = options.decode(result.output_ids)
        reason = {"type": "length", "length": generation.request.sampling_params.max_new_tokens}
        if result.finish_reason == "abort":
            reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    spans = _cut(generation.spans, len(result.output_ids))
    seconds = time.monotonic() - generation.started
    return Snapshot(text, result.output_ids, result.output_logprobs, spans, seconds, reason, result)


def _cut(spans: Sequence[WeightSpan], num_ids: int) -> list[WeightSpan]:
    return [WeightSpan(s.version, s.start, min(s.end, num_ids)) for s in spans if s.start < num_ids]


def _cut_result(result: GenerateResult, num_prompt: int, num_ids: int) -> GenerateResult:
    routed = result.routed_experts
    return replace(
        result,
        output_ids=result.output_ids[:num_ids],
        output_logprobs=result.output_logprobs[:num_ids],
        routed_experts=None if routed is None else routed[: num_prompt + num_ids - 1],
        top_logprobs=None if result.top_logprobs is None else result.top_logprobs[:num_ids],
    )
