"""JSON over HTTP to a model server, with retries: what judges, chat models and reward models behind endpoints share."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import httpx
import tenacity

from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.types import Json

MOST_WAIT_SECONDS = 60.0  # also where a server asks for more
MOST_BYTES = 32 << 20  # of a reply; a longer one is none
_TRANSIENT = frozenset({408, 409, 425, 429})
_UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError)

ResultT = TypeVar("ResultT")


class _NoReply(Exception):
    """This attempt gave nothing. `hopeless`: another one of the same request can't either."""

    def __init__(self, what: str, wait_seconds: float = 0.0, hopeless: bool = False) -> None:
        super().__init__(what)
        self.wait_seconds, self.hopeless = wait_seconds, hopeless


class JsonClient:
    """Posts to one address, from several threads at once if need be.

    An attempt that gives nothing (no connection, 429, 5xx, a reply that can't be read) is repeated after a wait that
    doubles, or that the server asked for (Retry-After), of 60 s at most.

    Raises:
        ConfigError: the address is none.

    Args:
        model: the model that is asked for, named in errors.
        retry_wait_seconds: first wait between attempts.
        timeout_seconds: until a reply begins, and from then on until it is whole.
        max_concurrency: how many requests may be under way at once; others wait.
    """

    def __init__(
        self,
        url: str,
        model: str,
        api_key: str | None = None,
        *,
        retries: int = 2,
        retry_wait_seconds: float = 1.0,
        timeout_seconds: float = 120.0,
        max_concurrency: int = 16,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url, self._model, self._timeout_seconds = url, model, timeout_seconds
        _require_address(url)
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

    def post(
        self, body: dict[str, Json], read: Callable[[Json], ResultT], on_request: Callable[[], None] = lambda: None
    ) -> ResultT:
        """What `read` makes of the reply; where it raises as for a reply of another shape, another one is asked for.

        Raises InfrastructureError when no reply can be had, ConfigError when the endpoint refuses us.
        """

        def attempt() -> ResultT:
            on_request()
            reply = self._reply(body)
            try:
                return read(json.loads(reply))
            except _UNREADABLE as error:
                raise _NoReply(f"unreadable reply: {error}") from error

        try:
            return self._retrying.copy()(attempt)
        except _NoReply as error:
            raise InfrastructureError(f"{self._model} gave no reply: {error}", where=self._url) from error

    def close(self) -> None:
        self._client.close()

    def _reply(self, body: dict[str, Json]) -> bytes:
        try:
            with self._client.stream("POST", self._url, json=body) as response:
                self._require_answered(response)
                return self._whole(response)
        except httpx.RequestError as error:
            raise _NoReply(str(error) or type(error).__name__) from error

    def _whole(self, response: httpx.Response) -> bytes:
        """The client's own time-out is one of each read, so that a reply in drops would never end."""
        data = bytearray()
        deadline = time.monotonic() + self._timeout_seconds
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) > MOST_BYTES:
                raise _NoReply(f"a reply of more than {MOST_BYTES} bytes")
            if time.monotonic() > deadline:
                raise _NoReply(f"a reply that was not whole within {self._timeout_seconds:g} s")
        return bytes(data)

    def _require_answered(self, response: httpx.Response) -> None:
        status = response.status_code
        if status in (401, 403, 404):
            raise ConfigError(
                f"the endpoint refuses model {self._model!r} with status {status}",
                where=self._url,
                hint="check the model id, the endpoint's address and its key",
            )
        if status != 200:
            transient = status in _TRANSIENT or status >= 500
            wait = retry_after_seconds(response.headers.get("Retry-After"), datetime.now(UTC))
            raise _NoReply(f"status {status}", wait, hopeless=not transient)


def _require_address(url: str) -> None:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"the endpoint's address can't be read: {error}", where=url) from error
    if address.scheme not in ("http", "https") or not address.host:
        raise ConfigError("the endpoint's address is none of HTTP", where=url, hint="give one like http://host:port/v1")


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
