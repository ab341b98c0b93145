"""200 clients at once, half of which vanish: those who stay get what they would get alone, and nothing is left."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import httpx
import pytest

from rufus_core.ports.engine import GenerateRequest, GenerateResult, SamplingParams
from rufus_core.rollout.engine import EmbeddedEngine
from rufus_core.rollout.policy import Policy
from tests.rollout.server.process import PATIENCE_SECONDS, ServerProcess

NUM_CLIENTS = 200


def wanted(i: int) -> dict[str, Any]:
    rng = random.Random(i)
    prompt = [rng.randrange(1, 400) for _ in range(rng.randrange(1, 40))]
    params = {"max_new_tokens": rng.randrange(4, 40), "sampling_seed": i, "temperature": 0.9, "ignore_eos": True}
    return {"rid": f"client{i}", "input_ids": prompt, "sampling_params": params, "return_logprob": True}


async def stay(client: httpx.AsyncClient, i: int) -> dict[str, Any]:
    body = wanted(i) | {"stream": i % 4 == 0}
    reply = await client.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    if not body["stream"]:
        return dict(reply.json())
    *_, last, done = [line for line in reply.text.splitlines() if line]
    assert done == "data: [DONE]"
    return dict(json.loads(last.removeprefix("data: ")))


async def vanish(url: str, i: int) -> None:
    """Hang up in the middle of the request, after it, or in the middle of the answer; with and without a goodbye."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = wanted(i) | {"stream": i % 3 == 0}
    body["sampling_params"] |= {"max_new_tokens": 1900}
    raw = json.dumps(body).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + (raw[: len(raw) // 2] if i % 5 == 0 else raw))
    await writer.drain()
    if i % 3 == 0 and i % 5:
        for _ in range(i % 7 + 4):
            await reader.readline()
    writer.transport.abort() if i % 2 else writer.close()


def same(reply: dict[str, Any], expected: GenerateResult) -> None:
    assert reply["output_ids"] == expected.output_ids
    logprobs = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
    assert logprobs == pytest.approx(expected.output_logprobs, abs=1e-4)


def test_clients_that_vanish_leave_nothing_behind(server: ServerProcess, policy: Policy) -> None:
    async def crowd() -> list[dict[str, Any]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=300.0, limits=limits) as client:
            going = [vanish(server.url, i) for i in range(1, NUM_CLIENTS, 2)]
            staying = [stay(client, i) for i in range(0, NUM_CLIENTS, 2)]
            mixed = [each for pair in zip(going, staying, strict=True) for each in pair]
            return [reply for reply in await asyncio.gather(*mixed) if reply]

    httpx.post(f"{server.url}/generate", json=wanted(0))
    server.assert_quiet()
    before, counts = server.resources(), server.load()
    replies = asyncio.run(crowd())

    engine = EmbeddedEngine(policy.model)
    requests = [wanted(i) for i in range(0, NUM_CLIENTS, 2)]
    results = engine.generate(
        [GenerateRequest(r["rid"], r["input_ids"], _params(**r["sampling_params"])) for r in requests]
    )
    for reply, result in zip(replies, results, strict=True):
        same(reply, result)

    server.assert_quiet()
    after = server.load()
    assert after["num_finished"] - counts["num_finished"] == NUM_CLIENTS // 2
    # Those who hung up in the middle of their request never asked for anything.
    assert after["num_aborted"] - counts["num_aborted"] <= NUM_CLIENTS // 2 - NUM_CLIENTS // 10
    assert after["num_aborted"] > counts["num_aborted"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not at_most(server.resources(), before) and time.monotonic() < deadline:  # connections close a little later
        time.sleep(0.05)
    assert at_most(server.resources(), before)


def at_most(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def _params(ignore_eos: bool, **params: Any) -> SamplingParams:
    return SamplingParams(**params)
