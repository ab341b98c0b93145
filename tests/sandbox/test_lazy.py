"""A sandbox that opens when it is first needed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rufus_core.errors import SandboxUnavailable
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.sandbox.lazy import LazySandbox
from tests.sandbox.real import require_isolation


def test_all_threads_share_the_one_that_the_first_opens_and_closing_ends_it() -> None:
    require_isolation()
    opened = []

    def open_pool() -> InterpreterPool:
        opened.append(InterpreterPool(1))
        return opened[-1]

    with LazySandbox(open_pool) as sandbox:
        assert opened == []
        with ThreadPoolExecutor(8) as threads:
            given = list(threads.map(lambda _: sandbox(), range(32)))
        assert {id(pool) for pool in given} == {id(pool) for pool in opened}
        assert len(opened) == 1
        assert opened[0].run("print(7)").stdout == "7\n"
    with pytest.raises(RuntimeError):
        opened[0].run("print(7)")


def test_an_opening_that_failed_is_tried_again() -> None:
    tries = []

    def refuse() -> InterpreterPool:
        tries.append(1)
        raise SandboxUnavailable("no namespaces")

    with LazySandbox(refuse) as sandbox:
        for _ in range(2):
            with pytest.raises(SandboxUnavailable):
                sandbox()
    assert len(tries) == 2
