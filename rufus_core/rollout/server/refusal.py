"""What the server answers when it can't do what it was asked: a status, a message, and the field at fault."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import JSONResponse

from rufus_core.errors import EngineError

_MOST_CHARACTERS = 500  # of a message, which may quote the request
_HEADERS = {503: {"Retry-After": "1"}, 413: {"Connection": "close"}}  # the rest of a large body is never read


class Refusal(EngineError):
    """A request that can't be served.

    Args:
        status: the HTTP status: 4xx where the request is at fault, 503 where another try may succeed.
        param: the field at fault.
    """

    def __init__(self, what: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(what, where=param)
        self.status, self.param = status, param


def error_response(
    status: int, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """OpenAI's error object. SGLang sends its message alone, or the same fields without the object around them."""
    error = {
        "message": message[:_MOST_CHARACTERS],
        "type": HTTPStatus(status).phrase,
        "param": param,
        "code": status,
    }
    return JSONResponse({"error": error}, status, {**_HEADERS.get(status, {}), **(headers or {})})
