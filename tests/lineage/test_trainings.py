"""Which training an artifact came out of."""

import pytest

from rufus_core.errors import LineageError
from rufus_core.lineage import Store
from rufus_core.lineage.trainings import training_of
from tests.lineage.miniature import make, make_recipe


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def test_a_checkpoint_its_scores_and_the_training_itself_lead_to_the_training(store, tmp_path):
    checkpoint = make_recipe(store, tmp_path / "chats.jsonl")
    training = store.get(checkpoint.inputs["training"].record_id)
    scores = make(store, "scores/coding_rl", "scores", {"a": "a"}, {"checkpoint": checkpoint})
    assert {training_of(store, each).id for each in (checkpoint, scores, training)} == {training.id}


def test_an_earlier_stage_is_found_on_the_way(store, tmp_path):
    checkpoint = make_recipe(store, tmp_path / "chats.jsonl")
    assert training_of(store, checkpoint, "sft").name == "stages/sft/train"
    assert training_of(store, checkpoint, "coding_rl").name == "stages/coding_rl/train"
    with pytest.raises(LineageError, match=r"no training of if_rl \(there are: coding_rl, sft\)"):
        training_of(store, checkpoint, "if_rl")


def test_what_no_training_made_says_so(store, tmp_path):
    make_recipe(store, tmp_path / "chats.jsonl")
    with pytest.raises(LineageError, match=r"base/\w+ goes back to no training \(name a stage's checkpoint\)"):
        training_of(store, store.resolve("base").record)
