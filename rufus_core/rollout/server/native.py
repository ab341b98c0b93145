"""SGLang's native endpoints: generate, abort, pause, weights, health."""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from rufus_core.errors import RufusError
from rufus_core.ports.engine import GenerateRequest, SamplingParams
from rufus_core.rollout.server.body import read_json, validated
from rufus_core.rollout.server.completion import Snapshot, TextOptions, last, snapshots
from rufus_core.rollout.server.protocol import (
    AbortInput,
    ContinueInput,
    FlushInput,
    GenerateInput,
    PauseInput,
    UpdateWeightsInput,
    engine_requests,
    generate_inputs,
)
from rufus_core.rollout.server.refusal import Refusal, error_response
from rufus_core.rollout.server.served import Served
from rufus_core.rollout.server.service import Generation
from rufus_core.rollout.server.streaming import DONE, EventStream, event, merged, unless_gone
from rufus_core.types import Json


class Native:
    """Handlers of the native endpoints."""

    def __init__(self, served: Served) -> None:
        self._served, self._service = served, served.service

    async def generate(self, request: Request) -> Response:
        items, batch = generate_inputs(await read_json(request, self._served.most_bytes), self._service.most_in_flight)
        jobs: list[tuple[GenerateInput, GenerateRequest]] = []
        for item in items:
            jobs += [(item, each) for each in engine_requests(item, self._prompt_ids(item), self._served.limits)]
        growing = items[0].stream
        every_token = growing or any(item.sampling_params.stop for item in items)
        several = batch or len(jobs) > 1

        async def finish() -> list[dict[str, Json]]:
            async with self._service.running([each for _, each in jobs], every_token) as generations:
                replies = []
                for (item, each), generation in zip(jobs, generations, strict=True):
                    options = self._served.text_options(item.sampling_params)
                    replies.append(self._reply(item, each, await last(self._service, generation, options)))
                return replies

        if growing:
            generations = await self._service.submit([each for _, each in jobs], every_token)
            events = self._events(jobs, generations, several)
            return EventStream(events, close=lambda: self._service.abort(generations))
        replies = await unless_gone(request, finish())
        return JSONResponse(replies if several else replies[0])

    async def _events(
        self, jobs: Sequence[tuple[GenerateInput, GenerateRequest]], generations: Sequence[Generation], several: bool
    ) -> AsyncGenerator[str]:
        """Each event is the reply so far; of several, each has its index."""
        streams = [
            snapshots(self._service, generation, self._served.text_options(item.sampling_params), growing=True)
            for (item, _), generation in zip(jobs, generations, strict=True)
        ]
        try:
            async with aclosing(merged(streams)) as stream:
                async for i, snapshot in stream:
                    yield event(self._reply(*jobs[i], snapshot) | ({"index": i} if several else {}))
        except RufusError as error:
            yield event({"error": {"message": str(error)}})
        yield DONE

    def _prompt_ids(self, item: GenerateInput) -> list[int]:
        if item.input_ids is not None:
            return item.input_ids
        return self._served.encode(item.text or "")

    def _reply(self, item: GenerateInput, request: GenerateRequest, snapshot: Snapshot) -> dict[str, Json]:
        decode = self._served.decode(skip_special_tokens=False)

        def scored(logprob: float | None, token: int) -> list[Json]:
            return [logprob, token, decode([token]) if item.return_text_in_logprobs else None]

        result = snapshot.result
        meta: dict[str, Json] = {
            "id": request.rid,
            "finish_reason": snapshot.finish_reason,
            "prompt_tokens": len(request.input_ids),
            "completion_tokens": len(snapshot.output_ids),
            "cached_tokens": result.cached_tokens if result else 0,
            "weight_version": snapshot.spans[-1].version if snapshot.spans else self._service.weight_version,
            "weight_versions": [asdict(span) for span in snapshot.spans],
            "e2e_latency": snapshot.seconds,
        }
        if item.return_logprob:
            start, known = request.input_logprobs_from, (result.input_logprobs if result else None) or []
            # SGLang leaves the first of them out, wherever it stands.
            prompt = [None, *known[1:]] if known else []
            meta["input_token_logprobs"] = [
                scored(logprob, token) for logprob, token in zip(prompt, request.input_ids[start or 0 :], strict=False)
            ]
            meta["output_token_logprobs"] = list(map(scored, snapshot.output_logprobs, snapshot.output_ids))
            if request.top_logprobs and result and result.top_logprobs is not None:
                meta["output_top_logprobs"] = [[scored(*pair) for pair in top] for top in result.top_logprobs]
        if item.return_routed_experts and result and result.routed_experts is not None:
            routed = result.routed_experts[item.routed_experts_start_len :]
            meta["routed_experts"] = base64.b64encode(routed.astype("<i4").tobytes()).decode()
        if item.return_prompt_token_ids:
            meta["prompt_token_ids"] = list(request.input_ids)
        return {"text": snapshot.text, "output_ids": snapshot.output_ids, "meta_info": meta}

    # -- control -----------------------------------------------------------------------------------------------------

    async def abort_request(self, request: Request) -> Response:
        wanted = validated(AbortInput, await read_json(request, self._served.most_bytes))
        await (self._service.abort_all() if wanted.abort_all else self._service.abort_rid(wanted.rid))
        return Response()

    async def pause_generation(self, request: Request) -> Response:
        wanted = validated(PauseInput, await read_json(request, self._served.most_bytes))
        await self._service.pause(wanted.mode)
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: Request) -> Response:
        validated(ContinueInput, await read_json(request, self._served.most_bytes))
        await self._service.resume()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def flush_cache(self, request: Request) -> Response:
        validated(FlushInput, await read_json(request, self._served.most_bytes))
        if await self._service.flush():
            return PlainTextResponse("Cache flushed.\n")
        return PlainTextResponse("Not flushed: requests are running or waiting.\n", 400)

    async def update_weights_from_disk(self, request: Request) -> Response:
        wanted = validated(UpdateWeightsInput, await read_json(request, self._served.most_bytes))
        try:
            version, num_in_flight = await self._service.update_weights(
                Path(wanted.model_path), wanted.weight_version, wanted.abort_all_requests
            )
        except RufusError as error:
            if isinstance(error, Refusal):
                raise
            return JSONResponse({"success": False, "message": str(error), "num_paused_requests": 0}, 400)
        self._served.model_path = wanted.model_path
        message = f"Succeeded to update model weights. Weight version updated to {version}."
        return JSONResponse({"success": True, "message": message, "num_paused_requests": num_in_flight})

    # -- what it is, and how it is -----------------------------------------------------------------------------------

    async def model_info(self, _request: Request) -> Response:
        config = self._served.policy.model.config
        return JSONResponse(
            {
                "model_path": self._served.model_path,
                "tokenizer_path": self._served.model_path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self._service.weight_version,
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": config.model_type,
                "architectures": [type(self._served.policy.model).__name__],
            }
        )

    async def server_info(self, _request: Request) -> Response:
        limits = self._served.limits
        return JSONResponse(
            {
                "served_model_name": self._served.name,
                "model_path": self._served.model_path,
                "context_length": limits.context_length,
                "vocab_size": limits.vocab_size,
                "weight_version": self._service.weight_version,
                "internal_states": [self._service.load()],
            }
        )

    async def health(self, _request: Request) -> Response:
        failure = self._service.failure
        return Response() if failure is None else error_response(503, str(failure))

    async def health_generate(self, request: Request) -> Response:
        """Sample one token. A paused engine is well, and can't."""
        if self._service.paused:
            return error_response(503, "generation is paused")
        probe = GenerateRequest(
            f"health_{secrets.token_hex(8)}", [0], SamplingParams(max_new_tokens=1, temperature=0.0)
        )

        async def sample() -> None:
            async with self._service.running([probe]) as [generation]:
                await last(self._service, generation, TextOptions(lambda _ids: ""))

        await unless_gone(request, sample())
        return Response()
