"""Whatever is sent, the answer is a typed 4xx that names the field; nothing hangs and the server goes on.

RUFUS_MALFORMED=10000 sends that many instead of 2000.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from typing import Any

import httpx
import pytest

from tests.rollout.server.malformed import Malformed, chat_body, malformed_requests, native_body
from tests.rollout.server.process import ServerProcess

COUNT = int(os.environ.get("RUFUS_MALFORMED", "2000"))
AT_ONCE = 32


def fault(sent: Malformed, response: httpx.Response) -> str | None:
    """What is wrong with an answer, if anything is."""
    if not 400 <= response.status_code < 500:
        return f"status {response.status_code}"
    body = response.json()
    if sent.path == "/update_weights_from_disk" and "success" in body:
        return None if body["success"] is False and body["message"] else "no typed refusal"
    error = body["error"]
    if error["code"] != response.status_code or not error["message"] or not error["type"]:
        return "not typed"
    if sent.param is not None and not str(error["param"]).startswith(sent.param):
        return f"it names {error['param']!r}, not {sent.param!r}"
    return None


def test_every_malformed_request_is_refused_by_name(server: ServerProcess) -> None:
    good = {**native_body(), "sampling_params": {"max_new_tokens": 5, "temperature": 0}}

    async def send_all() -> list[str]:
        faults: list[str] = []
        left = iter(malformed_requests(COUNT, seed=1))
        async with httpx.AsyncClient(base_url=server.url, timeout=120.0) as client:

            async def send_some() -> None:
                for sent in left:
                    response = await client.request(sent.method, sent.path, content=sent.content, headers=sent.headers)
                    if told := fault(sent, response):
                        request = f"{sent.method} {sent.path} {sent.content[:200]!r}"
                        faults.append(f"{told}: {request} -> {response.text[:300]}")

            before = (await client.post("/generate", json=good)).json()["output_ids"]
            await asyncio.gather(*(send_some() for _ in range(AT_ONCE)))
            assert (await client.post("/generate", json=good)).json()["output_ids"] == before
        return faults

    faults = asyncio.run(send_all())
    assert not faults, f"{len(faults)} of {COUNT}:\n" + "\n".join(faults[:20])
    server.assert_quiet()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_ids": [[98]] * 1025}, "input_ids"),
        ({"text": ["hello"] * 1025}, "text"),
        ({"input_ids": [[98]] * 9, "sampling_params": {"n": 128}}, "sampling_params.n"),
    ],
)
def test_more_samples_than_may_be_in_flight_are_refused(server: ServerProcess, body: Any, param: str) -> None:
    response = httpx.post(f"{server.url}/generate", json=body, timeout=60.0)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert "at most 1024" in response.json()["error"]["message"]


def test_json_that_is_too_deep_for_the_chat_template_is_refused(server: ServerProcess) -> None:
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"deep": deep}}}
    response = httpx.post(f"{server.url}/v1/chat/completions", json={**chat_body(), "tools": [tool]}, timeout=60.0)
    assert response.status_code == 400
    assert "nested too deeply" in response.json()["error"]["message"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.168.0.9", ""])
def test_a_host_by_another_name_is_refused(server: ServerProcess, host: str) -> None:
    response = httpx.get(f"{server.url}/model_info", headers={"host": host})
    assert (response.status_code, response.json()["error"]["param"]) == (421, "host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:30000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:30000"])
def test_this_machine_has_several_names(server: ServerProcess, host: str) -> None:
    assert httpx.get(f"{server.url}/model_info", headers={"host": host}).status_code == 200


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60.0)
    connection.putrequest("POST", "/generate")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(10**9))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 413
    assert json.load(response)["error"]["param"] == "body"
    connection.close()
