"""A model behind an OpenAI-compatible endpoint, which is a real server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.rollout.chat_sampler import ChatReply, ChatSampler
from rufus_core.types import Message

ASKED = [Message(role="system", content="Be brief."), Message(role="user", content="1 + 1?")]


@contextmanager
def endpoint(*replies: tuple[int, Any]) -> Iterator[tuple[str, list[Any]]]:
    """A server that gives these replies in turn, the last one for ever; its address, and what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, reply = replies[min(len(asked), len(replies) - 1)]
            asked.append((self.path, self.headers.get("Authorization"), body))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", asked
        finally:
            server.shutdown()
            thread.join()


def said(content: str | None, finish: str = "stop", **more: Any) -> tuple[int, Any]:
    choice = {"message": {"role": "assistant", "content": content, **more}, "finish_reason": finish}
    return 200, {"choices": [choice], "usage": {"completion_tokens": 7}}


def ask(url: str) -> ChatReply:
    with ChatSampler("big", url, "secret", sleep=lambda _: None) as sampler:
        return sampler.reply(ASKED, max_tokens=30, temperature=0.7, seed=5)


def test_a_request_says_model_budget_temperature_and_seed() -> None:
    with endpoint(said("2")) as (url, asked):
        reply = ask(url)
    assert reply == ChatReply(Message(role="assistant", content="2"), finished=True, num_tokens=7)
    ((path, key, body),) = asked
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert body == {
        "model": "big",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}],
        "max_tokens": 30,
        "temperature": 0.7,
        "seed": 5,
    }


@pytest.mark.parametrize(
    ("reply", "content", "reasoning", "finished"),
    [
        (said("<think>one and one</think>\n2"), "2", "one and one", True),
        (said("2", reasoning_content="one and one"), "2", "one and one", True),
        (said("It is", "length"), "It is", None, False),
        (said(None, "length", reasoning_content="hm"), "", "hm", False),
    ],
)
def test_reasoning_is_apart_and_a_reply_that_was_cut_off_says_so(
    reply: tuple[int, Any], content: str, reasoning: str | None, finished: bool
) -> None:
    with endpoint(reply) as (url, _):
        found = ask(url)
    assert (found.message.content, found.message.reasoning, found.finished) == (content, reasoning, finished)


def test_a_failure_is_tried_again_and_then_told() -> None:
    with endpoint((503, {}), (200, {"odd": 1}), said("2")) as (url, asked):
        assert ask(url).message.content == "2"
        assert len(asked) == 3
    with endpoint((503, {})) as (url, asked), pytest.raises(InfrastructureError, match="big gave no reply"):
        ask(url)
    assert len(asked) == 3


def test_a_model_that_isnt_served_is_a_mistake_of_the_user() -> None:
    with endpoint((404, {})) as (url, _), pytest.raises(ConfigError, match="refuses model 'big'"):
        ask(url)
