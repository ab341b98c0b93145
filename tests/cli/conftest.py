"""A home whose store has a small recipe in it, for the commands that ask questions of one."""

import pytest

from rufus_core.lineage import Store, store_root
from tests.lineage.miniature import make_recipe


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def store(home):
    return Store(store_root(home))


@pytest.fixture
def checkpoint(store, tmp_path):
    """The recipe's last checkpoint."""
    return make_recipe(store, tmp_path / "chats.jsonl")
