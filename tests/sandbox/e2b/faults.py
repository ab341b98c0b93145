"""What goes wrong at the test server, on demand."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

Kind = Literal["status", "reset", "slow", "kill"]


class Fault(BaseModel):
    """Strikes requests whose method and path begin with `route`, `times` of them.

    status: answers at once, before anything is done. reset: the connection breaks amid the answer.
    slow: the answer waits for `seconds`. kill: the machine that is asked goes away first.
    """

    route: str
    kind: Kind
    times: int = 1
    status: int = 500
    seconds: float = 0.0


class Struck(Exception):
    """Ends a request so that the connection is dropped."""


class Faults:
    def __init__(self) -> None:
        self.pending: list[Fault] = []

    def take(self, request: str) -> Fault | None:
        for fault in self.pending:
            if fault.times and request.startswith(fault.route):
                fault.times -= 1
                return fault
        return None


def broken(send: Any) -> Any:
    """A `send` that passes on the half of a body's first part and then breaks the connection."""
    cut = False

    async def passing(message: dict[str, Any]) -> None:
        nonlocal cut
        if not cut and message.get("body"):
            cut = True
            await send({**message, "body": message["body"][: len(message["body"]) // 2], "more_body": True})
        if cut:
            raise Struck
        await send(message)

    return passing
