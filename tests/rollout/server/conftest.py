"""One server process for the tests of a worker, and the same policy in this process to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rufus_core.rollout.policy import Policy
from tests.rollout.server.process import ServerProcess
from tests.rollout.server.small import small_policy


@pytest.fixture(scope="session")
def policy() -> Policy:
    return small_policy()


@pytest.fixture(scope="session")
def checkpoint(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / "small"
    policy.save(folder)
    return folder


@pytest.fixture(scope="session")
def server(checkpoint: Path) -> Iterator[ServerProcess]:
    with ServerProcess(checkpoint) as process:
        yield process


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client; what it leaves behind on the server is asserted to be nothing."""
    with httpx.Client(base_url=server.url, timeout=120.0) as client:
        yield client
        server.assert_quiet()
