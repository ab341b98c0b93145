"""A store with a small recipe in it, for the tests that ask questions of one."""

import pytest

from rufus_core.lineage import Store
from tests.lineage.miniature import make_recipe
from tests.shared_roots import place, s3, s3_server

__all__ = ["place", "s3", "s3_server"]


@pytest.fixture
def data(tmp_path):
    """The user's data file that the recipe was trained on."""
    return tmp_path / "chats.jsonl"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def checkpoint(store, data):
    """The recipe's last checkpoint."""
    return make_recipe(store, data)
