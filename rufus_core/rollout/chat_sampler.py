"""A model behind an OpenAI-compatible chat completions endpoint, as a sampler: messages in, one reply out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import httpx
import tenacity

from rufus_core.errors import ConfigError, EngineError, InfrastructureError
from rufus_core.types import Json, Message

URL, API_KEY = "RUFUS_TEACHER_URL", "RUFUS_TEACHER_API_KEY"
_THINK_END = "</think>"


@dataclass(frozen=True, slots=True)
class ChatReply:
    """`finished` is False where the token budget cut the reply off. `num_tokens` is 0 where the server tells none."""

    message: Message
    finished: bool
    num_tokens: int


class _NoReply(Exception):
    """This attempt gave no reply; another one may."""


class ChatSampler:
    """Used from several threads at once. An attempt without a reply is repeated (two retries), then given up.

    Args:
        model: the model id that the endpoint serves.
        url: base URL ending in `/v1`. By default RUFUS_TEACHER_URL; the key, if any, is RUFUS_TEACHER_API_KEY.
        retry_wait_seconds: first wait between attempts; it doubles.

    Raises:
        ConfigError: no endpoint is named.
    """

    def __init__(
        self,
        model: str,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retries: int = 2,
        retry_wait_seconds: float = 1.0,
        timeout_seconds: float = 600.0,
    ) -> None:
        url = url or os.environ.get(URL)
        if not url:
            raise ConfigError(f"sampler {model!r} needs an endpoint", hint=f"set {URL} to an OpenAI-compatible /v1")
        self._model = model
        self._url = url.rstrip("/") + "/chat/completions"
        key = api_key or os.environ.get(API_KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(headers=headers, timeout=timeout_seconds)
        self._attempts = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(1 + retries),
            wait=tenacity.wait_exponential(retry_wait_seconds, max=30.0),
            retry=tenacity.retry_if_exception_type(_NoReply),
            reraise=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def reply(self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int) -> ChatReply:
        """One sampled reply.

        Raises:
            ConfigError: the endpoint refuses us or knows no such model.
            EngineError: it refuses this request, which may be too long for the model.
            InfrastructureError: no reply can be had.
        """
        body = {
            "model": self._model,
            "messages": [{"role": each.role, "content": each.content} for each in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        try:
            return self._attempts.copy()(self._ask, body)
        except _NoReply as error:
            raise InfrastructureError(f"{self._model} gave no reply: {error}", where=self._url) from error

    def _ask(self, body: dict[str, Json]) -> ChatReply:
        try:
            response = self._client.post(self._url, json=body)
        except httpx.TransportError as error:
            raise _NoReply(str(error) or type(error).__name__) from error
        status = response.status_code
        if status in (401, 403, 404):
            raise ConfigError(
                f"the endpoint refuses model {self._model!r} with status {status}",
                where=self._url,
                hint=f"check the model id, {URL} and {API_KEY}",
            )
        if status in (400, 413, 422):
            raise EngineError(f"{self._model} refuses this request with status {status}", where=self._url)
        if response.is_error:
            raise _NoReply(f"status {status}")
        try:
            return _read(response.json())
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise _NoReply(f"unreadable reply: {type(error).__name__} {error}") from error


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
