"""A request's body as a checked model, or a refusal that names the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator
from starlette.requests import ClientDisconnect, Request

from rufus_core.rollout.server.refusal import Refusal
from rufus_core.types import Json

ModelT = TypeVar("ModelT", bound="Input")


class Input(BaseModel):
    """A JSON object from outside. Unknown fields are refused; null stands for a field's default, as in SGLang.

    What `ignored` names is taken and dropped, for it says nothing of the result.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    ignored: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _drop_nothings(cls, data: Json) -> Json:
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        return {
            key: value
            for key, value in data.items()
            if key not in cls.ignored
            and not (value is None and key in fields and not fields[key].is_required() and fields[key].default != value)
        }


def neutral(*values: Json) -> AfterValidator:
    """A field that would change the result in a way this engine doesn't know: only what leaves it alone is taken."""

    def check(value: Json) -> Json:
        if not any(value == each and type(value) in _kin(each) for each in values):
            raise ValueError(f"not supported by this engine: leave it out, or send {json.dumps(values[0])}")
        return value

    return AfterValidator(check)


def _kin(value: Json) -> tuple[type, ...]:
    return (int, float) if type(value) in (int, float) else (type(value),)


Unsupported = Annotated[Json, neutral(None)]
UnsupportedList = Annotated[Json, neutral(None, [])]


async def read_json(request: Request, most_bytes: int) -> dict[str, Json]:
    """The body as a JSON object; no body counts as an empty one.

    JSON must be announced as such, which a page in a browser can't do without asking first.

    Raises:
        Refusal: too large, not JSON, not an object, or text that is no Unicode.
    """
    raw = bytearray()
    declared = request.headers.get("content-length", "0")
    too_large = Refusal(f"the body is larger than {most_bytes} bytes", status=413, param="body")
    if declared.isdecimal() and int(declared) > most_bytes:
        raise too_large
    try:
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > most_bytes:
                raise too_large
    except ClientDisconnect:
        raise Refusal("the client hung up", status=408, param="body") from None
    if not raw:
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal("send the header Content-Type: application/json", status=415, param="content-type")
    return parse_object(bytes(raw))


def parse_object(raw: bytes) -> dict[str, Json]:
    """Raises Refusal for what isn't one plain JSON object: NaN, halves of surrogate pairs, towers of brackets."""
    try:
        data = json.loads(raw.decode(), parse_constant=_no_constant)
        if b"\\ud" in raw.lower():
            json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0] if isinstance(error, ValueError) else "nested too deeply"
        raise Refusal(f"not valid JSON: {reason}", param="body") from error
    if not isinstance(data, dict):
        raise Refusal("a JSON object is expected", param="body")
    return data


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is no JSON number")


def validated(model: type[ModelT], data: Json, locate: Callable[[str], str] = lambda field: field) -> ModelT:
    """Raises Refusal with the first fault; `locate` may say more of where a field stands."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        field = ""
        for part in fault["loc"]:
            field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
        raise Refusal(fault["msg"].removeprefix("Value error, "), param=locate(field or "body")[:200]) from error
