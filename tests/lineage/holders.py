"""Processes that hold leases on demand."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rufus_core.errors import LineageError
from tests.shared_roots import on_host

FORK = multiprocessing.get_context("fork")


class Worker:
    """Holds the lease that `acquire` takes, on this host or on one that is called otherwise.

    `publishing` is entered to ask whether it has the lease still, as publishing does.
    """

    def __init__(
        self,
        acquire: Callable[[], Any],
        host: str | None = None,
        publishing: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_serve, args=(theirs, acquire, host, publishing), daemon=True)
        self.process.start()

    def __call__(self, word: str) -> Any:
        """The token of the lease it has, or the name of the error."""
        self._pipe.send(word)
        return self._pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(
    pipe: Any,
    acquire: Callable[[], Any],
    host: str | None,
    publishing: Callable[[], AbstractContextManager[object]],
) -> None:
    if host is not None:
        on_host(host)
    held = None
    while True:
        word = pipe.recv()
        try:
            if word == "acquire":
                held = acquire()
            elif word == "require":
                with publishing():
                    held.require()
            else:
                getattr(held, word)()
            pipe.send(held.token)
        except LineageError as error:
            pipe.send(type(error).__name__)
