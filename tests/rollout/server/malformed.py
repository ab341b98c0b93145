"""Requests that are wrong in one way each, drawn from a seed, and the field that the answer must name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.rollout.server.small import CONTEXT

AS_JSON = {"content-type": "application/json"}
NO_NUMBER: tuple[Any, ...] = ("1", [], {}, [1], True, "", "null")
NO_TEXT: tuple[Any, ...] = (1, 1.5, [1], {}, True)
NO_BOOL: tuple[Any, ...] = (1, 0, "true", [], {}, 1.5)
NO_WHOLE: tuple[Any, ...] = (*NO_NUMBER, 1.5, 1e30)
NO_LIST_OF_IDS: tuple[Any, ...] = ("12", 5, {}, True, [1, "2"], [1, None], [1.5], [-1], [2**40], [10**60], [True])
UNHEARD_OF = ("temprature", "max_tokens ", "", "\u00e9", "__class__", "Stop", "seed\n")

SAMPLING: dict[str, tuple[Any, ...]] = {
    "max_new_tokens": (*NO_WHOLE, 0, -1, 10**30, CONTEXT),
    "temperature": (*NO_NUMBER, -0.1, -1e300),
    "top_p": (*NO_NUMBER, 0, -1, 1.0001, 1e300),
    "top_k": (*NO_WHOLE, 0, -2, -(10**20)),
    "n": (*NO_WHOLE, 0, -1, 10**6),
    "sampling_seed": (*NO_WHOLE, -1, 2**63, 10**40),
    "stop": (*NO_TEXT, "", [""], ["a", None], ["x" * 5000], ["a"] * 100),
    "stop_token_ids": NO_LIST_OF_IDS,
    "ignore_eos": NO_BOOL,
    "skip_special_tokens": NO_BOOL,
    "no_stop_trim": NO_BOOL,
    "min_p": (0.1, "0", [], 1),
    "frequency_penalty": (0.5, -2, "0"),
    "presence_penalty": (1, True),
    "repetition_penalty": (1.1, 0, True),
    "min_new_tokens": (1, "0"),
    "json_schema": ("{}", {}, 0),
    "regex": (".*", ""),
    "ebnf": ("root ::= x",),
    "structural_tag": ("{}",),
    "stop_regex": ("a+", ["a"]),
    "logit_bias": ({"1": 2}, [1]),
    "custom_params": ({"a": 1}, 1),
}
NATIVE: dict[str, tuple[Any, ...]] = {
    "input_ids": (*NO_LIST_OF_IDS, [], [[]], [[1], []], [[1], 2], [[[1]]], [CONTEXT * 5], [[1], [10**6]]),
    "sampling_params": (1, "x", True, [], [{}, {}]),
    "rid": (*NO_TEXT, "", "x" * 300),
    "return_logprob": NO_BOOL,
    "logprob_start_len": (*NO_WHOLE, -2),
    "top_logprobs_num": (*NO_WHOLE, -1, 10**9),
    "return_routed_experts": NO_BOOL,
    "routed_experts_start_len": (*NO_WHOLE, -1, 99),
    "return_text_in_logprobs": NO_BOOL,
    "stream": NO_BOOL,
    "image_data": ("data:", ["x"]),
    "input_embeds": ([[0.5]], 1),
    "lora_path": ("x", ["x"]),
    "session_params": ({"id": "x"}, 1),
    "custom_logit_processor": ("x",),
    "return_hidden_states": (True, 1, "x"),
    "token_ids_logprob": ([1], 1),
}
MESSAGE: dict[str, tuple[Any, ...]] = {
    "role": (*NO_TEXT, "", "robot", "User"),
    "content": (1, True, {}, [1], [{"type": "image_url"}], [{"type": "text"}], [{"type": "text", "text": 1}]),
    "tool_calls": (1, "x", [1], [{}], [{"function": {"name": 1}}]),
    "reasoning_content": NO_TEXT,
}
CHAT: dict[str, tuple[Any, ...]] = {
    "messages": (1, "x", {}, [], [1], ["x"], [[]]),
    "model": (*NO_TEXT, "another", "x" * 1000),
    "tools": (1, "x", {}, [1], [{"type": "function"}], [{"type": "retrieval", "function": {"name": "f"}}]),
    "tool_choice": ("required", {"type": "function"}, 1),
    "max_tokens": (*NO_WHOLE, 0, -1, 10**30, CONTEXT),
    "seed": (*NO_WHOLE, -1, 2**63),
    "logprobs": NO_BOOL,
    "top_logprobs": (*NO_WHOLE, -1, 21),
    "return_token_ids": NO_BOOL,
    "stream": NO_BOOL,
    "stream_options": (1, "x", [], {"include_usage": 1}),
    "response_format": (1, "json_object", {"type": "json_schema"}, {}, {"type": "regex"}),
    "functions": ([{"name": "f"}], 1),
    "parallel_tool_calls": (False, 1),
    "chat_template_kwargs": ({"enable_thinking": False}, 1),
    **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k", "n", "stop", "stop_token_ids", "min_p")},
}
CONTROL: dict[str, dict[str, tuple[Any, ...]]] = {
    "/abort_request": {"rid": NO_TEXT, "abort_all": NO_BOOL},
    "/pause_generation": {"mode": (*NO_TEXT, "", "stop", "ABORT")},
    "/update_weights_from_disk": {"model_path": (*NO_TEXT, ""), "load_format": ("dummy", 1), "weight_version": (1, "")},
}
BODIES: dict[str, dict[str, Any]] = {
    "/abort_request": {"rid": "nobody"},
    "/pause_generation": {},
    "/update_weights_from_disk": {"model_path": "nowhere"},
}
PATHS = ("/generate", "/v1/chat/completions", "/abort_request", "/pause_generation", "/update_weights_from_disk")


@dataclass(frozen=True, slots=True)
class Malformed:
    method: str
    path: str
    content: bytes
    param: str | None = None  # what the answer's field must begin with
    headers: Mapping[str, str] = field(default_factory=lambda: AS_JSON)


def native_body() -> dict[str, Any]:
    return {"input_ids": [98, 17, 30], "sampling_params": {"max_new_tokens": 2}}


def chat_body() -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


def _dump(body: Any) -> bytes:
    return json.dumps(body).encode()


def _sampling(rng: random.Random) -> Malformed:
    name = rng.choice(list(SAMPLING))
    body = native_body()
    body["sampling_params"][name] = rng.choice(SAMPLING[name])
    return Malformed("POST", "/generate", _dump(body), f"sampling_params.{name}")


def _native(rng: random.Random) -> Malformed:
    name = rng.choice(list(NATIVE))
    body = native_body() | {name: rng.choice(NATIVE[name])}
    if name == "logprob_start_len":
        body["return_logprob"] = True
    if name == "routed_experts_start_len":
        body["return_routed_experts"] = True
    return Malformed("POST", "/generate", _dump(body), name)


def _batch(rng: random.Random) -> Malformed:
    """One wrong entry in a batch of right ones."""
    body = {"input_ids": [[98, 17]] * 3, "sampling_params": [{"max_new_tokens": 2} for _ in range(3)]}
    name = rng.choice(list(SAMPLING))
    body["sampling_params"][rng.randrange(3)][name] = rng.choice(SAMPLING[name])
    return Malformed("POST", "/generate", _dump(body), f"sampling_params.{name}")


def _chat(rng: random.Random) -> Malformed:
    body = chat_body()
    if rng.random() < 0.3:
        name = rng.choice(list(MESSAGE))
        body["messages"][0][name] = rng.choice(MESSAGE[name])
        return Malformed("POST", "/v1/chat/completions", _dump(body), f"messages[0].{name}")
    name = rng.choice(list(CHAT))
    value = rng.choice(CHAT[name])
    body |= {name: value, **({"logprobs": True} if name == "top_logprobs" else {})}
    return Malformed("POST", "/v1/chat/completions", _dump(body), name)


def _control(rng: random.Random) -> Malformed:
    path = rng.choice(list(CONTROL))
    name = rng.choice(list(CONTROL[path]))
    return Malformed("POST", path, _dump(BODIES[path] | {name: rng.choice(CONTROL[path][name])}), name)


def _missing(rng: random.Random) -> Malformed:
    required = {
        "/generate": "body",
        "/abort_request": "body",
        "/v1/chat/completions": "messages",
        "/update_weights_from_disk": "model_path",
    }
    path = rng.choice(list(required))
    return Malformed("POST", path, rng.choice([b"{}", b""]), required[path])


def _unheard_of(rng: random.Random) -> Malformed:
    name = rng.choice(UNHEARD_OF)
    path = rng.choice(PATHS)
    body = {"/generate": native_body(), "/v1/chat/completions": chat_body()}.get(path) or dict(BODIES[path])
    return Malformed("POST", path, _dump(body | {name: 1}), name or "body")


def _no_json(rng: random.Random) -> Malformed:
    """Valid JSON that was broken: cut, with a byte too many, or in no encoding; and JSON that isn't an object."""
    whole = _dump(rng.choice([native_body(), chat_body()]))
    at = rng.randrange(1, len(whole) - 1)
    content = rng.choice(
        [
            whole[:at],
            whole + rng.choice([b"}", b",", b"\x00", b"x"]),
            b"\xff" + whole,
            whole[:-1] + b', "rid": "\xe9"}',
            whole[:-1] + b', "rid": "\\ud800"}',
            whole[:-1] + b', "temperature": NaN}',
            whole[:-1] + b', "rid": -Infinity}',
            b"[" * 100_000,
            b'{"input_ids":' * 20_000,
            b'{"input_ids": [' + b"9" * 5000 + b"]}",
            rng.choice([b"[]", b"1", b"null", b'"x"', b"true", whole.join([b"[", b"]"])]),
            rng.randbytes(rng.randrange(1, 200)),
        ]
    )
    return Malformed("POST", rng.choice(PATHS), content, "body")


def _no_such_thing(rng: random.Random) -> Malformed:
    method, path = rng.choice(
        [
            *(("GET", path) for path in PATHS),
            *(("DELETE", path) for path in PATHS),
            ("POST", "/health"),
            ("PUT", "/model_info"),
            ("PATCH", "/flush_cache"),
            ("POST", "/"),
            ("GET", "/generate/"),
            ("GET", "/v1"),
            ("POST", "/v1/completions"),
            ("GET", "/../../etc/passwd"),
            ("GET", "/%00"),
            ("GET", "/v1/models/" + "x" * 500),
            ("POST", "/release_memory_occupation"),
        ]
    )
    return Malformed(method, path, _dump(native_body()))


def _not_announced(rng: random.Random) -> Malformed:
    kind = rng.choice(
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", ""]
    )
    path = rng.choice(PATHS)
    return Malformed("POST", path, _dump(native_body()), "content-type", {"content-type": kind})


def _too_long(rng: random.Random) -> Malformed:
    length = rng.choice([CONTEXT, CONTEXT + 1, 3 * CONTEXT])
    text = rng.choice(["x", "hello ", "\u00fc"]) * 2 * length
    path, body, param = rng.choice(
        [
            ("/generate", {"input_ids": [5] * length}, "input_ids"),
            ("/generate", {"input_ids": [[5], [5] * length]}, "input_ids"),
            ("/generate", {"text": text}, "text"),
            ("/generate", {"text": ["hello", text * 100]}, "text"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, "messages"),
        ]
    )
    return Malformed("POST", path, _dump(body), param)


def _both_prompts(rng: random.Random) -> Malformed:
    text, ids = rng.choice([("x", [1]), (["x"], [[1]]), (["x"], [1]), ("x", [[1]])])
    return Malformed("POST", "/generate", _dump({"text": text, "input_ids": ids}))


_KINDS: tuple[Callable[[random.Random], Malformed], ...] = (
    _sampling, _native, _batch, _chat, _control, _missing, _unheard_of, _no_json, _no_such_thing, _not_announced,
    _too_long, _both_prompts,
)  # fmt: skip


def malformed_requests(count: int, seed: int) -> list[Malformed]:
    rng = random.Random(seed)
    return [rng.choice(_KINDS)(rng) for _ in range(count)]
