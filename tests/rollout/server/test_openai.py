"""Chat completions of a real server: what a judge asks, tools, streams, and that streams and replies agree."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import httpx
import pytest

from rufus_core.errors import ConfigError
from rufus_core.rewards.chat_client import ChatClient
from rufus_core.rewards.openai_judge import OpenAIJudge
from rufus_core.rollout.policy import Policy
from tests.rollout.server.process import ServerProcess
from tests.rollout.server.small import ANSWER, CALL, GREETING, JUDGED, LOOK, QUESTION, SEEN

HELLO = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0}
TOOL = {"type": "function", "function": LOOK.model_dump()}


def ask(http: httpx.Client, **body: Any) -> Any:
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def chunks(http: httpx.Client, **body: Any) -> list[Any]:
    with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_completion_is_read_as_the_chat_format_reads_it(http: httpx.Client, policy: Policy) -> None:
    reply = ask(http, **HELLO, logprobs=True, top_logprobs=2, return_token_ids=True)
    [choice] = reply["choices"]
    assert choice["message"]["content"] == GREETING.content
    assert choice["message"]["reasoning_content"] == GREETING.reasoning
    assert (choice["message"]["tool_calls"], choice["finish_reason"]) == (None, "stop")
    ids, prompt = choice["response_token_ids"], choice["prompt_token_ids"]
    assert policy.chat.decode(prompt).endswith("<|user|>\nhello<|assistant|>")
    assert policy.chat.parse(ids, ()).message == GREETING
    assert choice["matched_stop"] == ids[-1]
    assert reply["usage"]["total_tokens"] == len(ids) + len(prompt)
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == policy.chat.decode(ids)
    assert all(entry["top_logprobs"][0]["logprob"] >= entry["logprob"] - 1e-6 for entry in entries)
    native = {"input_ids": prompt, "sampling_params": {"temperature": 0}, "return_logprob": True}
    same = http.post("/generate", json=native).json()
    assert same["output_ids"] == ids
    logprobs = [entry[0] for entry in same["meta_info"]["output_token_logprobs"]]
    assert [entry["logprob"] for entry in entries] == pytest.approx(logprobs, abs=1e-5)


def test_tools_are_called_and_their_results_are_read(http: httpx.Client) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    first = ask(http, messages=messages, tools=[TOOL], temperature=0)["choices"][0]
    [call] = first["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", CALL.name)
    assert json.loads(call["function"]["arguments"]) == CALL.arguments
    assert (first["finish_reason"], first["message"]["content"]) == ("tool_calls", None)
    messages += [first["message"], {"role": "tool", "tool_call_id": call["id"], "content": SEEN}]
    second = ask(http, messages=messages, tools=[TOOL], temperature=0)["choices"][0]
    assert (second["message"]["content"], second["finish_reason"]) == (ANSWER, "stop")
    unseen = ask(http, messages=messages[:1], tools=[TOOL], tool_choice="none", return_token_ids=True, max_tokens=1)
    assert len(unseen["choices"][0]["prompt_token_ids"]) < first_prompt(http, messages[:1])


def first_prompt(http: httpx.Client, messages: list[dict[str, Any]]) -> int:
    reply = ask(http, messages=messages, tools=[TOOL], max_tokens=1)
    return int(reply["usage"]["prompt_tokens"])


@pytest.mark.parametrize(
    "body",
    [
        HELLO,
        {"messages": [{"role": "user", "content": QUESTION}], "tools": [TOOL], "temperature": 0},
        {**HELLO, "stop": ["wor"]},
        {**HELLO, "n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 30},
    ],
)
def test_a_stream_says_what_the_reply_says(http: httpx.Client, body: dict[str, Any]) -> None:
    reply = ask(http, **body, logprobs=True)
    seen = chunks(http, **body, logprobs=True, stream_options={"include_usage": True})
    assert seen.pop()["usage"] == reply["usage"]
    said: dict[int, dict[str, Any]] = defaultdict(lambda: {"content": "", "reasoning_content": "", "logprobs": []})
    for chunk in seen:
        [choice] = chunk["choices"]
        mine = said[choice["index"]]
        for part in ("content", "reasoning_content"):
            mine[part] += choice["delta"].get(part) or ""
        mine["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
        mine["finish_reason"], mine["calls"] = choice["finish_reason"], choice["delta"].get("tool_calls")
    assert len(said) == len(reply["choices"])
    for choice in reply["choices"]:
        mine, message = said[choice["index"]], choice["message"]
        assert mine["finish_reason"] == choice["finish_reason"]
        assert [e["token"] for e in mine["logprobs"]] == [e["token"] for e in choice["logprobs"]["content"]]
        if body.get("temperature") == 0:  # what is sampled wildly may think twice, which a stream can't foresee
            assert mine["content"] == (message["content"] or "")
            assert mine["reasoning_content"] == (message["reasoning_content"] or "")
            names = [call["function"] for call in mine["calls"] or []]
            assert names == [call["function"] for call in message["tool_calls"] or []]


def test_the_judge_of_a_reward_can_stand_here(server: ServerProcess) -> None:
    name = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
    judge = OpenAIJudge(ChatClient(name, f"{server.url}/v1"))
    assert [judge.score({"kind": "polite"}, text) for text in JUDGED] == [1.0] * len(JUDGED)
    judge.close()
    other = OpenAIJudge(ChatClient("another", f"{server.url}/v1"))
    with pytest.raises(ConfigError, match="refuses model 'another' with status 404"):
        other.score({"kind": "polite"}, "hello")
    other.close()


def test_a_wish_for_json_is_taken_and_said_not_to_be_enforced(http: httpx.Client) -> None:
    assert "not enforced" in ask(http, **HELLO, response_format={"type": "json_object"})["warnings"][0]
    assert "warnings" not in ask(http, **HELLO, response_format={"type": "text"})


def test_models_are_listed(http: httpx.Client) -> None:
    [card] = http.get("/v1/models").json()["data"]
    assert http.get(f"/v1/models/{card['id']}").json() == card
    assert http.get("/v1/models/none").json()["error"]["param"] == "model"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(http: httpx.Client, change: dict[str, Any], field: str) -> None:
    response = http.post("/v1/chat/completions", json={**HELLO, **change})
    assert response.status_code == 400
    error = response.json()["error"]
    assert str(error["param"]).startswith(field)
    assert field in error["message"]
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "tool_choice": "auto", "logit_bias": {}, "user": "me"}
    assert http.post("/v1/chat/completions", json={**HELLO, **neutral, "max_tokens": None}).status_code == 200
