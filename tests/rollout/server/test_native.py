"""The native endpoints of a real server, against the engine in this process."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import shutil
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from rufus_core.ports.engine import GenerateRequest, GenerateResult, SamplingParams
from rufus_core.rollout.engine import EmbeddedEngine
from rufus_core.rollout.policy import Policy
from tests.rollout.server.process import ServerProcess
from tests.rollout.server.small import CONTEXT, user

PROMPT = [98, 17, 30, 41, 52]
LONG = {"max_new_tokens": 2000, "ignore_eos": True, "temperature": 1.0, "sampling_seed": 4}  # seconds of work


def alone(policy: Policy, prompt: list[int], **more: Any) -> GenerateResult:
    """The engine's own answer to one request."""
    asked = {
        key: more.pop(key) for key in ("return_routed_experts", "input_logprobs_from", "top_logprobs") if key in more
    }
    params = SamplingParams(**{"max_new_tokens": 12, **more})
    [result] = EmbeddedEngine(policy.model).generate([GenerateRequest("r", prompt, params, **asked)])
    return result


def generate(http: httpx.Client, **body: Any) -> Any:
    response = http.post("/generate", json={"input_ids": PROMPT, **body})
    assert response.status_code == 200, response.text
    return response.json()


def streamed(http: httpx.Client, **body: Any) -> AbstractContextManager[httpx.Response]:
    return http.stream("POST", "/generate", json={"input_ids": PROMPT, "stream": True, **body})


def events(response: httpx.Response) -> Any:
    """The events of a stream as they come, up to its end."""
    for line in response.iter_lines():
        if line == "data: [DONE]":
            return
        if line:
            yield json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream broke off")


def test_a_reply_has_what_sglang_sends(http: httpx.Client, policy: Policy) -> None:
    params = {"max_new_tokens": 12, "sampling_seed": 3, "temperature": 0.8, "ignore_eos": True}
    reply = generate(
        http,
        rid="mine",
        sampling_params=params,
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=2,
        return_routed_experts=True,
    )
    expected = alone(
        policy,
        PROMPT,
        sampling_seed=3,
        temperature=0.8,
        return_routed_experts=True,
        input_logprobs_from=0,
        top_logprobs=2,
    )
    assert reply["output_ids"] == expected.output_ids
    assert reply["text"] == policy.chat.tokenizer.decode(expected.output_ids, skip_special_tokens=True)
    meta = reply["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("mine", 5, 12)
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 12}]
    assert meta["e2e_latency"] > 0
    assert meta["cached_tokens"] >= 0
    logprobs, ids, texts = zip(*meta["output_token_logprobs"], strict=True)
    assert list(ids) == expected.output_ids
    assert set(texts) == {None}
    assert list(logprobs) == pytest.approx(expected.output_logprobs, abs=1e-5)
    assert expected.input_logprobs is not None
    assert [entry[1] for entry in meta["input_token_logprobs"]] == PROMPT
    assert meta["input_token_logprobs"][0][0] is None
    assert [e[0] for e in meta["input_token_logprobs"][1:]] == pytest.approx(expected.input_logprobs[1:], abs=1e-5)
    assert expected.top_logprobs is not None
    assert [[e[1] for e in top] for top in meta["output_top_logprobs"]] == [
        [t for _, t in top] for top in expected.top_logprobs
    ]
    assert expected.routed_experts is not None
    routed = np.frombuffer(base64.b64decode(meta["routed_experts"]), dtype=np.int32)
    np.testing.assert_array_equal(routed.reshape(16, 2, 2), expected.routed_experts)


def test_parts_of_the_prompt_and_the_routing(http: httpx.Client) -> None:
    params = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
    whole = generate(http, sampling_params=params, return_logprob=True, logprob_start_len=0)["meta_info"]
    part = generate(
        http,
        sampling_params=params,
        return_logprob=True,
        logprob_start_len=2,
        return_text_in_logprobs=True,
        return_routed_experts=True,
        routed_experts_start_len=4,
    )["meta_info"]
    assert [e[0] for e in part["input_token_logprobs"]] == [None, *[e[0] for e in whole["input_token_logprobs"][3:]]]
    assert all(isinstance(e[2], str) for e in part["output_token_logprobs"])
    assert len(base64.b64decode(part["routed_experts"])) == (5 + 3 - 1 - 4) * 2 * 2 * 4
    none = generate(http, sampling_params=params)["meta_info"]
    assert not {"input_token_logprobs", "output_token_logprobs", "routed_experts"} & set(none)


def test_a_batch_is_the_same_as_each_alone(http: httpx.Client) -> None:
    prompts = [[98, 20 + i, *range(30, 30 + 5 * i)] for i in range(5)]
    params = [{"max_new_tokens": 4 + i, "sampling_seed": i, "ignore_eos": True} for i in range(5)]
    batch = generate(http, input_ids=prompts, sampling_params=params, rid="b", return_logprob=[True] * 5)
    assert [reply["meta_info"]["id"] for reply in batch] == [f"b_{i}" for i in range(5)]
    for prompt, wanted, reply in zip(prompts, params, batch, strict=True):
        one = generate(http, input_ids=prompt, sampling_params=wanted, return_logprob=True)
        assert one["output_ids"] == reply["output_ids"]
        logprobs = [e[0] for e in reply["meta_info"]["output_token_logprobs"]]
        assert [e[0] for e in one["meta_info"]["output_token_logprobs"]] == pytest.approx(logprobs, abs=1e-5)


def test_several_samples_of_one_prompt_draw_from_the_seeds_that_follow(http: httpx.Client) -> None:
    params = {"max_new_tokens": 6, "ignore_eos": True}
    three = generate(http, sampling_params={**params, "n": 3, "sampling_seed": 10})
    each = [generate(http, sampling_params={**params, "sampling_seed": seed}) for seed in (10, 11, 12)]
    assert [reply["output_ids"] for reply in three] == [reply["output_ids"] for reply in each]
    params |= {"temperature": 100.0, "max_new_tokens": 20}  # all tokens about as likely
    [[one], [two]] = [generate(http, input_ids=[PROMPT], sampling_params=params) for _ in range(2)]
    assert one["output_ids"] != two["output_ids"]  # without a seed, another one each time


def test_text_goes_in_and_comes_out(http: httpx.Client, policy: Policy) -> None:
    ids = policy.chat.tokenizer("the world is")["input_ids"]
    params = {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}
    text = generate(http, input_ids=None, text="the world is", sampling_params=params, return_prompt_token_ids=True)
    assert text["meta_info"]["prompt_token_ids"] == ids
    assert text["output_ids"] == generate(http, input_ids=ids, sampling_params=params)["output_ids"]


def test_stop_tokens_and_eos_end_a_reply_and_are_no_text(http: httpx.Client, policy: Policy) -> None:
    prompt = policy.chat.prompt_ids([user("hello")])
    params: dict[str, Any] = {"temperature": 0, "max_new_tokens": 40}
    reply = generate(http, input_ids=prompt, sampling_params=params)
    end = policy.chat.tokenizer.convert_tokens_to_ids("<|user|>")
    assert reply["output_ids"][-1] == end
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": end}
    assert reply["text"] == "\n<think>hello is a greeting</think>\nhello world"
    kept = generate(
        http, input_ids=prompt, sampling_params={**params, "no_stop_trim": True, "skip_special_tokens": False}
    )
    assert kept["text"] == reply["text"] + "<|user|>"
    on = generate(http, input_ids=prompt, sampling_params={**params, "ignore_eos": True})
    assert len(on["output_ids"]) == 40
    early = reply["output_ids"][4]
    cut = generate(http, input_ids=prompt, sampling_params={**params, "stop_token_ids": [early]})
    assert cut["output_ids"] == reply["output_ids"][: reply["output_ids"].index(early) + 1]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_cut_text_and_tokens(http: httpx.Client, policy: Policy, stream: bool) -> None:
    prompt = policy.chat.prompt_ids([user("hello")])
    params = {"temperature": 0, "max_new_tokens": 40, "stop": ["a greet", "world"]}
    body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True, "return_routed_experts": True}
    if stream:
        with streamed(http, **body) as response:
            seen = list(events(response))
        assert all(later["text"].startswith(sooner["text"]) for sooner, later in itertools.pairwise(seen))
        reply = seen[-1]
    else:
        reply = generate(http, **body)
    assert reply["text"] == "\n<think>hello is "
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": "a greet"}
    full = generate(http, **{**body, "sampling_params": {"temperature": 0, "max_new_tokens": 40}})
    assert reply["output_ids"] == full["output_ids"][: len(reply["output_ids"])]
    assert policy.chat.decode(reply["output_ids"]).endswith("a greeting")
    assert reply["meta_info"]["completion_tokens"] == len(reply["meta_info"]["output_token_logprobs"])
    routed = base64.b64decode(reply["meta_info"]["routed_experts"])
    assert len(routed) == (len(prompt) + len(reply["output_ids"]) - 1) * 2 * 2 * 4


def test_a_stream_grows_to_the_same_reply(http: httpx.Client) -> None:
    body = {"sampling_params": {"max_new_tokens": 9, "sampling_seed": 5, "ignore_eos": True}, "return_logprob": True}
    whole = generate(http, **body)
    with streamed(http, **body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        seen = list(events(response))
    assert [len(each["output_ids"]) for each in seen] == list(range(1, 10))
    assert [each["meta_info"]["finish_reason"] for each in seen[:-1]] == [None] * 8
    assert seen[-1]["output_ids"] == whole["output_ids"]
    assert seen[-1]["text"] == whole["text"]
    assert seen[-1]["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]
    with streamed(http, **{**body, "input_ids": [PROMPT, PROMPT]}) as response:
        last = {each["index"]: each for each in events(response)}
    assert [last[i]["output_ids"] for i in (0, 1)] == [whole["output_ids"]] * 2


# -- control ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"rid": "long"}, {"abort_all": True}])
def test_an_aborted_request_keeps_what_it_has(http: httpx.Client, policy: Policy, how: dict[str, Any]) -> None:
    with streamed(http, rid="long", return_logprob=True, sampling_params=LONG) as response:
        stream = events(response)
        for _ in range(3):
            early = next(stream)
        assert http.post("/abort_request", json=how).status_code == 200
        *_, last = stream
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    num = len(last["output_ids"])
    assert 3 <= num < LONG["max_new_tokens"]
    assert last["output_ids"][:3] == early["output_ids"]
    assert num == len(last["meta_info"]["output_token_logprobs"]) == last["meta_info"]["completion_tokens"]
    expected = alone(policy, PROMPT, max_new_tokens=num, sampling_seed=LONG["sampling_seed"])
    assert last["output_ids"] == expected.output_ids
    logprobs = [e[0] for e in last["meta_info"]["output_token_logprobs"]]
    assert logprobs == pytest.approx(expected.output_logprobs, abs=1e-4)
    assert http.post("/abort_request", json={"rid": "nobody"}).status_code == 200


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_pause_holds_what_runs_and_what_comes(server: ServerProcess, http: httpx.Client, mode: str) -> None:
    params = {"max_new_tokens": 200, "sampling_seed": 6, "ignore_eos": True}
    whole = generate(http, sampling_params=params)
    with streamed(http, sampling_params=params) as response:
        stream = events(response)
        next(stream)
        assert http.post("/pause_generation", json={"mode": mode}).json()["status"] == "ok"
        assert server.load()["paused"]
        assert http.get("/health").status_code == 200
        assert http.get("/health_generate").status_code == 503
        assert http.post("/flush_cache").status_code == 400
        with streamed(http, sampling_params=params) as other:
            assert http.post("/continue_generation", json={}).json()["status"] == "ok"
            *_, last = stream
            *_, second = events(other)
    assert last["output_ids"] == second["output_ids"] == whole["output_ids"]
    assert http.get("/health_generate").status_code == 200
    assert http.post("/flush_cache").status_code == http.get("/flush_cache").status_code == 200


def test_a_pause_that_aborts_ends_what_runs(http: httpx.Client) -> None:
    with streamed(http, sampling_params=LONG) as response:
        stream = events(response)
        next(stream)
        http.post("/pause_generation")  # SGLang's default mode
        *_, last = stream
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    http.post("/continue_generation")


def test_an_abort_is_told_during_a_pause_that_holds_others(server: ServerProcess, http: httpx.Client) -> None:
    with streamed(http, sampling_params=LONG, rid="stays") as other:
        stays = events(other)
        next(stays)
        with streamed(http, sampling_params=LONG, rid="goes") as response:
            goes = events(response)
            next(goes)
            http.post("/pause_generation", json={"mode": "in_place"})
            http.post("/abort_request", json={"rid": "goes"})
            *_, last = goes
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
        assert (server.load()["num_running"], server.load()["paused"]) == (1, True)
        with streamed(http, sampling_params=LONG):
            server.until(num_waiting=1)
        server.until(num_waiting=0)  # whose client has gone
        http.post("/continue_generation")
        http.post("/abort_request", json={"rid": "stays"})
        *_, last = stays
    assert last["meta_info"]["finish_reason"]["type"] == "abort"


def test_new_weights_come_with_a_new_version(
    http: httpx.Client, policy: Policy, checkpoint: Path, tmp_path: Path
) -> None:
    changed = Policy(copy.deepcopy(policy.model), policy.chat)
    with torch.no_grad():
        changed.model.lm_head.weight.mul_(0.5)
    changed.save(tmp_path / "changed")
    body = {"sampling_params": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}, "return_logprob": True}
    before = generate(http, **body)
    with streamed(http, sampling_params=LONG) as response:
        stream = events(response)
        next(stream)
        http.post("/pause_generation", json={"mode": "in_place"})
        update = {"model_path": str(tmp_path / "changed"), "weight_version": "v9"}
        told = http.post("/update_weights_from_disk", json=update)
        assert (told.status_code, told.json()["success"], told.json()["num_paused_requests"]) == (200, True, 1)
        http.post("/continue_generation")
        next(each for each in stream if each["meta_info"]["weight_version"] == "v9")
        http.post("/abort_request", json={"abort_all": True})
        *_, last = stream
    old, new = last["meta_info"]["weight_versions"]
    assert (old["version"], new["version"]) == (before["meta_info"]["weight_version"], "v9")
    assert 0 == old["start"] < old["end"] == new["start"] < new["end"] == len(last["output_ids"])
    after = generate(http, **body)
    assert after["meta_info"]["weight_version"] == "v9" == http.get("/model_info").json()["weight_version"]
    logprobs = [e[0] for e in after["meta_info"]["output_token_logprobs"]]
    expected = alone(changed, PROMPT, max_new_tokens=6, temperature=0.0)
    assert after["output_ids"] == expected.output_ids
    assert logprobs == pytest.approx(expected.output_logprobs, abs=1e-5)
    assert logprobs != [e[0] for e in before["meta_info"]["output_token_logprobs"]]
    assert http.post("/update_weights_from_disk", json={"model_path": str(checkpoint)}).json()["success"]
    again = generate(http, **body)
    assert again["output_ids"] == before["output_ids"]
    assert again["meta_info"]["weight_version"] not in ("v9", before["meta_info"]["weight_version"])


def test_weights_of_another_make_are_refused(
    http: httpx.Client, policy: Policy, tiny_policy: Policy, tmp_path: Path
) -> None:
    version = http.get("/model_info").json()["weight_version"]
    tiny_policy.save(tmp_path / "tiny")
    (tmp_path / "empty").mkdir()
    turned = copy.deepcopy(policy.model)
    turned.config.rope_parameters = {**turned.config.rope_parameters, "rope_theta": 77.0}
    Policy(turned, policy.chat).save(tmp_path / "turned")
    reasons = {
        "tiny": "other names or shapes",
        "turned": "its configuration differs in rope_parameters",
        "empty": "can't load",
        "none": "no such directory",
        "n" * 300: "no such directory",
    }
    for folder, reason in reasons.items():
        response = http.post("/update_weights_from_disk", json={"model_path": str(tmp_path / folder)})
        assert (response.status_code, response.json()["success"]) == (400, False)
        assert reason in response.json()["message"]
    assert http.get("/model_info").json()["weight_version"] == version


# -- as anybody would ask ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_is_enough(server: ServerProcess) -> None:
    def curl(*words: str) -> str:
        done = subprocess.run(["curl", "-sS", "--fail-with-body", *words], capture_output=True, text=True, check=True)
        return done.stdout

    body = {"text": "hello", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    as_json = ("-H", "Content-Type: application/json", "-d")
    reply = json.loads(curl(f"{server.url}/generate", *as_json, json.dumps(body)))
    assert reply["meta_info"]["prompt_tokens"] == 1
    stream = curl("-N", f"{server.url}/generate", *as_json, json.dumps({**body, "stream": True}))
    assert stream.endswith("data: [DONE]\n\n")
    info = json.loads(curl(f"{server.url}/get_model_info"))
    assert info == json.loads(curl(f"{server.url}/model_info"))
    assert info["architectures"] == ["Glm4MoeForCausalLM"]
    assert curl("-X", "POST", f"{server.url}/flush_cache").startswith("Cache flushed")
    assert curl(f"{server.url}/health") == curl(f"{server.url}/health_generate") == ""
    server.assert_quiet()


def test_too_long_is_told_as_clients_know_it(http: httpx.Client) -> None:
    for body in (
        {"input_ids": [5] * CONTEXT},
        {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": CONTEXT}},
        {"text": "x" * CONTEXT},
        {"text": "x" * 1_000_000},
    ):
        response = http.post("/generate", json=body)
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert "exceeds the context length" in message
        assert str(CONTEXT) in message
