from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rufus_core.rollout.policy import Policy
from tests.training import toy


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def spoken() -> Policy:
    """A policy that says a colour. Shared: take the fixture `policy`, which is a copy."""
    return toy.speaking_policy()


@pytest.fixture
def policy(spoken: Policy) -> Policy:
    return toy.copy_of(spoken)
