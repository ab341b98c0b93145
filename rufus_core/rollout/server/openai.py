"""OpenAI's endpoints: the model list and chat completions, for judges and for people."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rufus_core.data.chat import ParsedTurn
from rufus_core.errors import RufusError
from rufus_core.ports.engine import GenerateRequest
from rufus_core.rollout.server.body import read_json, validated
from rufus_core.rollout.server.completion import Snapshot, last, snapshots
from rufus_core.rollout.server.openai_protocol import ChatInput
from rufus_core.rollout.server.protocol import check_new_tokens, check_prompt, fixed_seed
from rufus_core.rollout.server.refusal import Refusal
from rufus_core.rollout.server.served import Served
from rufus_core.rollout.server.service import Generation
from rufus_core.rollout.server.streaming import DONE, EventStream, event, merged, unless_gone
from rufus_core.rollout.server.turn_stream import TurnStream
from rufus_core.types import Json, ToolSchema

_UNFORCED_JSON = "response_format json_object is not enforced: the policy was only asked by its prompt"


@dataclass(frozen=True, slots=True)
class Chat:
    """A checked chat completion: what to sample, and how to tell it."""

    wanted: ChatInput
    requests: list[GenerateRequest]
    prompt_ids: list[int]
    tools: list[ToolSchema]
    created: int
    id: str


class OpenAI:
    """Handlers of the endpoints below /v1."""

    def __init__(self, served: Served) -> None:
        self._served, self._service = served, served.service
        self._created = int(time.time())

    async def models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return JSONResponse(self._card())

    async def chat_completions(self, request: Request) -> Response:
        chat = self._prepare(validated(ChatInput, await read_json(request, self._served.most_bytes)))
        wanted = chat.wanted
        if wanted.stream:
            generations = await self._service.submit(chat.requests, every_token=True)
            return EventStream(self._events(chat, generations), close=lambda: self._service.abort(generations))

        async def finish() -> list[Snapshot]:
            options = self._served.text_options(wanted)
            async with self._service.running(chat.requests, bool(wanted.stop)) as generations:
                return [await last(self._service, each, options) for each in generations]

        ends = await unless_gone(request, finish())
        return JSONResponse(
            {
                "id": chat.id,
                "object": "chat.completion",
                "created": chat.created,
                "model": self._served.name,
                "choices": [self._choice(chat, i, end) for i, end in enumerate(ends)],
                "usage": _usage(chat, ends),
                "metadata": {"weight_version": ends[-1].result.weight_version if ends[-1].result else ""},
                **({"warnings": [_UNFORCED_JSON]} if _wants_json(wanted) else {}),
            }
        )

    # -- the request -------------------------------------------------------------------------------------------------

    def _prepare(self, wanted: ChatInput) -> Chat:
        """Raises Refusal, TemplateError."""
        self._check_model(wanted.model or "default")
        try:
            messages, tools = wanted.conversation()
        except ValueError as error:
            raise Refusal(str(error), param="messages") from error
        self._served.check_length("".join(m.content + (m.reasoning or "") for m in messages), "messages")
        prompt = self._served.policy.chat.prompt_ids(messages, tools)
        limits = self._served.limits
        room = check_prompt(prompt, limits.context_length, "messages")
        most = wanted.max_completion_tokens or wanted.max_tokens or room
        check_new_tokens(most, len(prompt), limits.context_length, "max_tokens")
        rid, seed = wanted.rid or f"chatcmpl-{secrets.token_hex(16)}", fixed_seed(wanted.seed)
        requests = [
            GenerateRequest(
                rid=rid if wanted.n == 1 else f"{rid}_{i}",
                input_ids=prompt,
                sampling_params=wanted.params((seed + i) % 2**63, most, limits.eos_ids, limits.vocab_size),
                top_logprobs=wanted.top_logprobs,
            )
            for i in range(wanted.n)
        ]
        return Chat(wanted, requests, prompt, tools, int(time.time()), rid)

    def _check_model(self, name: str) -> None:
        if name not in (self._served.name, "default"):
            what = f"the model {name!r} does not exist: this server has {self._served.name!r}"
            raise Refusal(what, status=404, param="model")

    def _card(self) -> dict[str, Json]:
        return {
            "id": self._served.name,
            "object": "model",
            "created": self._created,
            "owned_by": "rufus",
            "root": self._served.model_path,
            "max_model_len": self._served.limits.context_length,
        }

    # -- the answer --------------------------------------------------------------------------------------------------

    def _parsed(self, chat: Chat, end: Snapshot) -> ParsedTurn:
        # A stop string may cut inside a token, and special tokens may be left out: the text tells, not the ids.
        tokenizer = self._served.policy.chat.tokenizer
        return self._served.policy.chat.parse(tokenizer(end.text, add_special_tokens=False)["input_ids"], chat.tools)

    def _choice(self, chat: Chat, index: int, end: Snapshot) -> dict[str, Json]:
        turn = self._parsed(chat, end)
        calls = _tool_calls(chat, index, turn)
        message: dict[str, Json] = {
            "role": "assistant",
            "content": turn.message.content if turn.message.content or not calls else None,
            "reasoning_content": turn.message.reasoning,
            "tool_calls": calls or None,
        }
        choice = {
            "index": index,
            "message": message,
            "logprobs": {"content": self._logprobs(end, 0)} if chat.wanted.logprobs else None,
            **_finish(end, bool(calls)),
        }
        if chat.wanted.return_token_ids:
            choice |= {"prompt_token_ids": chat.prompt_ids, "response_token_ids": end.output_ids}
        return choice

    def _logprobs(self, snapshot: Snapshot, start: int) -> list[Json]:
        decode = self._served.decode(skip_special_tokens=False)

        def scored(token: int, logprob: float) -> dict[str, Json]:
            text = decode([token])
            return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

        tops = snapshot.result.top_logprobs if snapshot.result else None
        return [
            scored(token, logprob)
            | {"top_logprobs": [scored(other, value) for value, other in tops[start + i]] if tops else []}
            for i, (token, logprob) in enumerate(
                zip(snapshot.output_ids[start:], snapshot.output_logprobs[start:], strict=True)
            )
        ]

    async def _events(self, chat: Chat, generations: Sequence[Generation]) -> AsyncGenerator[str]:
        wanted, options = chat.wanted, self._served.text_options(chat.wanted)
        thinking = self._served.opens_thinking(chat.prompt_ids)
        turns = [TurnStream(thinking, bool(chat.tools)) for _ in generations]
        shown, told, ends = [0] * len(turns), [0] * len(turns), list[Snapshot]()

        def chunk(choices: list[Json], **more: Json) -> str:
            kind = {"id": chat.id, "object": "chat.completion.chunk", "created": chat.created}
            return event({**kind, "model": self._served.name, "choices": choices, **more})

        def piece(i: int, delta: dict[str, Json], **more: Json) -> str:
            return chunk([{"index": i, "delta": delta, "logprobs": None, "finish_reason": None, **more}])

        for i in range(len(turns)):
            yield piece(i, {"role": "assistant", "content": ""})
        try:
            streams = [snapshots(self._service, each, options, growing=True) for each in generations]
            async with aclosing(merged(streams)) as stream:
                async for i, snapshot in stream:
                    pieces = turns[i].push(snapshot.text[shown[i] :])
                    shown[i] = max(shown[i], len(snapshot.text))
                    pieces += turns[i].end() if snapshot.result else []
                    for part, text in pieces:
                        yield piece(i, {"reasoning_content" if part == "reasoning" else "content": text})
                    more: dict[str, Json] = {}
                    if wanted.logprobs and len(snapshot.output_ids) > told[i]:
                        more = {"logprobs": {"content": self._logprobs(snapshot, told[i])}}
                        told[i] = len(snapshot.output_ids)
                    if snapshot.result:
                        ends.append(snapshot)
                        calls = _tool_calls(chat, i, self._parsed(chat, snapshot))
                        delta = {"tool_calls": calls} if calls else {}
                        yield piece(i, delta, **more, **_finish(snapshot, bool(calls)))
                    elif more:
                        yield piece(i, {}, **more)
            if wanted.stream_options.include_usage:
                yield chunk([], usage=_usage(chat, ends))
        except RufusError as error:
            yield event({"error": {"message": str(error)}})
        yield DONE


def _tool_calls(chat: Chat, index: int, turn: ParsedTurn) -> list[Json]:
    """A call that can't be dispatched is no call: its text is in the tokens, and nowhere else."""
    return [
        {
            "id": f"call_{chat.id.removeprefix('chatcmpl-')}_{index}_{i}",
            "index": i,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for i, call in enumerate(turn.message.tool_calls)
    ]


def _finish(end: Snapshot, called: bool) -> dict[str, Json]:
    reason = end.finish_reason or {}
    kind = "tool_calls" if called and reason.get("type") == "stop" else reason.get("type")
    return {"finish_reason": kind, "matched_stop": reason.get("matched")}


def _usage(chat: Chat, ends: Sequence[Snapshot]) -> dict[str, Json]:
    completion = sum(len(end.output_ids) for end in ends)
    cached = max((end.result.cached_tokens for end in ends if end.result), default=0)
    return {
        "prompt_tokens": len(chat.prompt_ids),
        "completion_tokens": completion,
        "total_tokens": len(chat.prompt_ids) + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _wants_json(wanted: ChatInput) -> bool:
    return wanted.response_format is not None and wanted.response_format.type == "json_object"
