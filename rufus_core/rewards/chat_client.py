"""A chat model behind an OpenAI-compatible endpoint: OpenAI's own dialect, SGLang's and the embedded engine's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from rufus_core.rewards.json_client import JsonClient
from rufus_core.rewards.usage import JudgeUsage, UsageMeter
from rufus_core.types import Json, Message

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class _Tally:
    """What the attempts at one question used."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    started: float = field(default_factory=time.perf_counter)

    def request(self) -> None:
        self.requests += 1

    def tokens(self, usage: dict[str, Json]) -> None:
        self.prompt_tokens += int(usage.get("prompt_tokens") or 0)
        self.completion_tokens += int(usage.get("completion_tokens") or 0)

    def usage(self, answered: bool) -> JudgeUsage:
        return JudgeUsage(
            verdicts=int(answered),
            unscored=int(not answered),
            requests=self.requests,
            retries=max(self.requests - 1, 0),
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            seconds=time.perf_counter() - self.started,
        )


class ChatClient:
    """Asks one model, from several threads at once if need be. A refusal is no reply, and is asked for again.

    Args:
        model: the model id that the endpoint serves.
        url: base URL, ending in `/v1`.
        max_tokens: of a reply; None leaves it to the server.
        meter: where usage is counted.
        options: how requests are sent and repeated, as JsonClient takes them.
    """

    def __init__(
        self,
        model: str,
        url: str,
        api_key: str | None = None,
        *,
        temperature: float = 0.0,
        max_tokens: int | None = None,
        meter: UsageMeter | None = None,
        **options: Any,
    ) -> None:
        self.model, self.temperature, self._max_tokens = model, temperature, max_tokens
        self.meter = UsageMeter() if meter is None else meter
        self._client = JsonClient(url.rstrip("/") + "/chat/completions", model, api_key, **options)

    @property
    def identity(self) -> str:
        return sampled(self.model, self.temperature)

    def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> str:
        """The reply's text without its reasoning.

        Raises InfrastructureError when no reply can be had, ConfigError when the endpoint refuses us.
        """
        return self.ask(messages, str, seed=seed)

    def ask(
        self,
        messages: Sequence[Message],
        read: Callable[[str], ResultT],
        *,
        seed: int | None = None,
        json_object: bool = False,
    ) -> ResultT:
        """What `read` makes of the reply's text; a reply that it refuses by a ValueError is asked for again.

        Raises as `complete` does.
        """
        body: dict[str, Json] = {
            "model": self.model,
            "temperature": self.temperature,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            **({"response_format": {"type": "json_object"}} if json_object else {}),
            **({} if seed is None else {"seed": seed}),
            **({} if self._max_tokens is None else {"max_tokens": self._max_tokens}),
        }
        tally, answered = _Tally(), False

        def answer(reply: Json) -> ResultT:
            tally.tokens(reply.get("usage") or {})
            return read(_text(reply["choices"][0]))

        try:
            result = self._client.post(body, answer, tally.request)
            answered = True
        finally:
            self.meter.add(tally.usage(answered))
        return result

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def sampled(model: str, temperature: float = 0.0) -> str:
    """The identity of a model's replies: all of a client that decides them."""
    return f"{model}@t{temperature:g}"


def _text(choice: dict[str, Json]) -> str:
    """Raises ValueError for a refusal, an aborted reply and one that ended inside its reasoning."""
    message = choice["message"]
    if message.get("refusal"):
        raise ValueError("the model refused")
    if choice.get("finish_reason") in ("abort", "content_filter"):
        raise ValueError(f"it ended by {choice['finish_reason']}")
    text = message["content"]
    if not isinstance(text, str):
        raise ValueError("it has no text")
    tail = text.rpartition("</think>")[2]
    if "<think>" in tail or not tail.strip():
        raise ValueError("it has no text after its reasoning")
    return tail.strip()
