from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.jobs.miniature import Runner, short_chain, small_recipe
from tests.shared_roots import place, s3, s3_server

__all__ = ["place", "s3", "s3_server"]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose store the tests of this folder share: what one made, the next reuses."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def runner(home: Path) -> Runner:
    return Runner(home, small_recipe())


@pytest.fixture(scope="session")
def chain(home: Path) -> Runner:
    return Runner(home, short_chain())
