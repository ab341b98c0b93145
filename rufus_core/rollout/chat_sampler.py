"""A model behind an OpenAI-compatible chat completions endpoint, as a sampler: messages in, one reply out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from rufus_core.errors import ConfigError
from rufus_core.rewards.json_client import JsonClient
from rufus_core.types import Json, Message

URL, API_KEY = "RUFUS_TEACHER_URL", "RUFUS_TEACHER_API_KEY"
_THINK_END = "</think>"


@dataclass(frozen=True, slots=True)
class ChatReply:
    """`finished` is False where the token budget cut the reply off. `num_tokens` is 0 where the server tells none."""

    message: Message
    finished: bool
    num_tokens: int


class ChatSampler:
    """Used from several threads at once. An attempt without a reply is repeated (two retries), then given up.

    Args:
        model: the model id that the endpoint serves.
        url: base URL ending in `/v1`. By default RUFUS_TEACHER_URL; the key, if any, is RUFUS_TEACHER_API_KEY.
        max_concurrency: how many requests may be under way at once; others wait.

    Raises:
        ConfigError: no endpoint is named.
    """

    def __init__(
        self,
        model: str,
        url: str | None = None,
        api_key: str | None = None,
        *,
        max_concurrency: int = 32,
        timeout_seconds: float = 600.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        url = url or os.environ.get(URL)
        if not url:
            raise ConfigError(f"sampler {model!r} needs an endpoint", hint=f"set {URL} to an OpenAI-compatible /v1")
        self._model = model
        self._client = JsonClient(
            url.rstrip("/") + "/chat/completions",
            model,
            api_key or os.environ.get(API_KEY),
            timeout_seconds=timeout_seconds,
            max_concurrency=max_concurrency,
            sleep=sleep,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def reply(self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int) -> ChatReply:
        """One sampled reply.

        Raises:
            ConfigError: the endpoint refuses us or knows no such model.
            InfrastructureError: no reply can be had; also for a request that is too long for the model.
        """
        body = {
            "model": self._model,
            "messages": [{"role": each.role, "content": each.content} for each in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        return self._client.post(body, _read)


def _read(body: Json) -> ChatReply:
    """Reasoning comes in a field of its own, or before the last closing think tag."""
    choice = body["choices"][0]
    given = choice["message"]
    content = given.get("content") or ""
    reasoning = given.get("reasoning_content") or given.get("reasoning")
    if not isinstance(content, str):
        raise TypeError(f"content is a {type(content).__name__}")
    if _THINK_END in content:
        thought, _, content = content.rpartition(_THINK_END)
        reasoning = reasoning or thought.removeprefix("<think>")
    tokens = (body.get("usage") or {}).get("completion_tokens")
    return ChatReply(
        message=Message(role="assistant", content=content.strip(), reasoning=reasoning or None),
        finished=choice.get("finish_reason") != "length",
        num_tokens=tokens if isinstance(tokens, int) else 0,
    )
