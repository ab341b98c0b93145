"""A chat model behind an OpenAI-compatible endpoint: OpenAI's own dialect, SGLang's and the embedded engine's."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self, TypeVar

import httpx
import tenacity

from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.rewards.usage import JudgeUsage, UsageMeter
from rufus_core.types import Json, Message

MOST_WAIT_SECONDS = 60.0  # also where a server asks for more
_TRANSIENT = frozenset({408, 409, 425, 429})

ResultT = TypeVar("ResultT")


class _NoReply(Exception):
    """This attempt gave nothing. `hopeless`: another one of the same request can't either."""

    def __init__(self, what: str, wait_seconds: float = 0.0, hopeless: bool = False) -> None:
        super().__init__(what)
        self.wait_seconds, self.hopeless = wait_seconds, hopeless


@dataclass(slots=True)
class _Attempts:
    """What the attempts at one question used."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    started: float = field(default_factory=time.perf_counter)

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
    """Asks one model, from several threads at once if need be.

    An attempt that gives nothing (no connection, 429, 5xx, a refusal, a reply that can't be read) is repeated after a
    wait that doubles, or that the server asked for (Retry-After), of 60 s at most.

    Args:
        model: the model id that the endpoint serves.
        url: base URL, ending in `/v1`.
        retry_wait_seconds: first wait between attempts.
        max_concurrency: how many requests may be under way at once; others wait.
        meter: where usage is counted.
    """

    def __init__(
        self,
        model: str,
        url: str,
        api_key: str | None = None,
        *,
        temperature: float = 0.0,
        retries: int = 2,
        retry_wait_seconds: float = 1.0,
        timeout_seconds: float = 120.0,
        max_concurrency: int = 16,
        meter: UsageMeter | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.model, self.temperature = model, temperature
        self.meter = UsageMeter() if meter is None else meter
        self._url = url.rstrip("/") + "/chat/completions"
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout_seconds, pool=None),
            limits=httpx.Limits(max_connections=max_concurrency),
        )
        self._retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(1 + retries),
            wait=lambda state: _wait_seconds(state, retry_wait_seconds),
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, _NoReply) and not error.hopeless),
            sleep=sleep,
            reraise=True,
        )

    @property
    def identity(self) -> str:
        return f"{self.model}@t{self.temperature:g}"

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
        }
        attempts, answered = _Attempts(), False

        def attempt() -> ResultT:
            text = self._request(body, attempts)
            try:
                return read(text)
            except (ValueError, RecursionError) as error:
                raise _NoReply(f"unreadable reply: {error}") from error

        try:
            result = self._retrying.copy()(attempt)
            answered = True
        except _NoReply as error:
            raise InfrastructureError(f"{self.model} gave no reply: {error}", where=self._url) from error
        finally:
            self.meter.add(attempts.usage(answered))
        return result

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _request(self, body: dict[str, Json], attempts: _Attempts) -> str:
        attempts.requests += 1
        try:
            response = self._client.post(self._url, json=body)
        except httpx.TransportError as error:
            raise _NoReply(str(error) or type(error).__name__) from error
        status = response.status_code
        if status in (401, 403, 404):
            raise ConfigError(
                f"the endpoint refuses model {self.model!r} with status {status}",
                where=self._url,
                hint="check the model id, the endpoint's address and its key",
            )
        if status != 200:
            transient = status in _TRANSIENT or status >= 500
            wait = retry_after_seconds(response.headers.get("Retry-After"), datetime.now(UTC))
            raise _NoReply(f"status {status}", wait, hopeless=not transient)
        try:
            reply = response.json()
            usage, choice = reply.get("usage") or {}, reply["choices"][0]
            attempts.prompt_tokens += int(usage.get("prompt_tokens") or 0)
            attempts.completion_tokens += int(usage.get("completion_tokens") or 0)
            return _text(choice)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            raise _NoReply(f"no chat completion: {error}") from error


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


def retry_after_seconds(value: str | None, now: datetime) -> float:
    """A Retry-After header in seconds (RFC 9110, 10.2.3: a number, or a date); 0 where it says nothing usable."""
    if value is None:
        return 0.0
    if value.strip().isascii() and value.strip().isdigit():
        return float(value)
    try:
        return max((email.utils.parsedate_to_datetime(value) - now).total_seconds(), 0.0)
    except (ValueError, TypeError):  # no date, or one without a time zone
        return 0.0


def _wait_seconds(state: tenacity.RetryCallState, first: float) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.wait_seconds if isinstance(error, _NoReply) else 0.0
    return min(max(first * 2.0 ** (state.attempt_number - 1), asked), MOST_WAIT_SECONDS)
