"""The head of a Ray cluster, asked over its Jobs API.

Over HTTP by ourselves, because Ray's client waits without end for a head that hangs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rufus_core.errors import ConfigError, InfrastructureError

ANSWER_SECONDS = 10.0
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_TOKEN, _TOKEN_PATH = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


class HeadSilent(Exception):
    """The head doesn't answer, or not as a head does: what becomes of its jobs can't be known now."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """What the head says of a job."""

    status: str
    code: int | None  # of its process, where that ended by itself
    message: str

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class RayHead:
    """Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS, headers=_credentials())

    def submit(self, submission_id: str, request: Mapping[str, Any]) -> None:
        """Start a job, unless this id was used before on this cluster.

        Raises HeadSilent, and InfrastructureError where the head refuses it.
        """
        answer = self._ask("POST", "/api/jobs/", {"submission_id": submission_id, **request})
        if self.find(submission_id) is not None:
            return
        if answer.is_success:
            raise HeadSilent("it took a job and knows nothing of it")
        reason = next((line for line in reversed(answer.text.splitlines()) if line.strip()), f"{answer.status_code}")
        raise InfrastructureError(f"Ray takes no job: {reason.strip()}", where=self.url)

    def find(self, submission_id: str) -> Submitted | None:
        """None where it knows no such job. Raises HeadSilent."""
        answer = self._ask("GET", f"/api/jobs/{submission_id}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if not answer.is_success:
            raise HeadSilent(f"{answer.status_code} {answer.reason_phrase}")
        try:
            told = answer.json()
            return Submitted(told["status"], told.get("driver_exit_code"), told.get("message") or "")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HeadSilent("what answers there is no Ray head") from error

    def stop(self, submission_id: str) -> None:
        """Ask for its end, which is SIGTERM to all its processes, and SIGKILL later. Raises HeadSilent."""
        self._ask("POST", f"/api/jobs/{submission_id}/stop")

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        try:
            answer = self._client.request(method, path, json=body)
        except httpx.TransportError as error:
            raise HeadSilent(str(error) or type(error).__name__) from error
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise InfrastructureError("Ray refuses our token", where=self.url, hint=f"set {_TOKEN} or {_TOKEN_PATH}")
        return answer


def _credentials() -> dict[str, str]:
    """As Ray's own client finds them: the variable, else the file that a variable names."""
    token, path = os.environ.get(_TOKEN), os.environ.get(_TOKEN_PATH)
    if not token and path:
        try:
            token = Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"can't read Ray's token: {error.strerror}", where=f"{_TOKEN_PATH}={path}") from error
    return {"Authorization": f"Bearer {token}"} if token else {}
