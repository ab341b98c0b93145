import shutil

import pytest

from rufus_core.errors import LineageError
from rufus_core.lineage import checkpoint_name, training_name
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.load import load_recipe
from tests.lineage.miniature import make, make_stage


def test_a_stage_is_its_newest_checkpoint(store, checkpoint, tmp_path):
    assert store.resolve("coding_rl").record == checkpoint
    newer = make_stage(store, "coding_rl", store.resolve("sft").record, tmp_path / "chats.jsonl", seed=8)
    assert newer.digest != checkpoint.digest
    assert store.resolve("coding_rl").record == newer


def test_the_recipe_names_its_artifacts_as_they_are_looked_for():
    recipe = load_recipe("rufus_air", "cpu")
    kinds = {step.name: step.kind for step in build_graph(recipe)}
    for stage in recipe.stages:
        assert kinds[checkpoint_name(stage)] == "checkpoint"
        assert kinds[training_name(stage)] == "training"


@pytest.mark.parametrize("separator", "@:")
def test_a_stage_and_step_is_a_folder_of_its_training_run(store, checkpoint, separator):
    ref = store.resolve(f"coding_rl{separator}12")
    assert (ref.record.kind, ref.step, ref.subfolder) == ("training", 12, "checkpoints/step-12")
    assert (ref.folder / "model.bin").read_text() == "coding_rl 12 7"


def test_a_step_is_looked_for_in_older_runs_too(store, checkpoint):
    make(store, "stages/coding_rl/train", "training", {"checkpoints/step-4/model.bin": "new"}, seed=9)
    assert (store.resolve("coding_rl@12").folder / "model.bin").read_text() == "coding_rl 12 7"
    assert (store.resolve("coding_rl@4").folder / "model.bin").read_text() == "new"


@pytest.mark.parametrize("digits", [6, 12, 64])
def test_a_digest_by_its_first_digits_in_either_case(store, checkpoint, digits):
    assert store.resolve(checkpoint.digest[:digits]).record == checkpoint
    assert store.resolve(checkpoint.digest[:digits].upper()).record == checkpoint


def test_a_digest_is_found_when_the_marks_are_lost(store, checkpoint):
    shutil.rmtree(store.root / "by-digest")
    assert store.resolve(checkpoint.digest[:8]).record == checkpoint


def test_a_mark_without_its_artifact_is_ignored(store, checkpoint):
    shutil.rmtree(store.path(checkpoint))
    with pytest.raises(LineageError, match="no checkpoint"):
        store.resolve(checkpoint.digest[:8])


def test_five_digits_are_too_few(store, checkpoint):
    with pytest.raises(LineageError, match="no checkpoint"):
        store.resolve(checkpoint.digest[:5])


def test_an_ambiguous_digest_lists_what_it_could_be(store, checkpoint):
    twin = make(store, "twin", "checkpoint", {"model.bin": "coding_rl 8 7", "config.json": "{}"})
    assert twin.digest == checkpoint.digest
    with pytest.raises(LineageError) as caught:
        store.resolve(twin.digest[:10])
    assert twin.id in str(caught.value)
    assert checkpoint.id in str(caught.value)
    assert store.resolve(twin.id).record == twin


def test_names_and_ids(store, checkpoint):
    assert store.resolve("base").record.kind == "base"
    assert store.resolve("data/sft").record.kind == "problems"
    assert store.resolve(checkpoint.id).record == checkpoint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("coding_lr", "nearest: coding_rl"),
        ("zzz", "coding_rl, sft"),
        ("coding_rl@5", "steps 4, 8, 12"),
        ("coding_lr@4", "nearest: coding_rl"),
        ("", "no checkpoint"),
        ("../../etc", "no checkpoint"),
        ("a b", "no checkpoint"),
        ("stages/sft/checkpoint/0123456789abcdef", "no checkpoint"),
    ],
)
def test_what_is_unknown_is_told_with_the_nearest(store, checkpoint, text, said):
    with pytest.raises(LineageError) as caught:
        store.resolve(text)
    assert said in str(caught.value)


def test_a_stage_that_only_trained_says_so(store):
    make(store, "stages/rlhf/train", "training", {"checkpoints/step-4/model.bin": "x"})
    with pytest.raises(LineageError, match="no published checkpoint yet") as caught:
        store.resolve("rlhf")
    assert "rlhf@4" in str(caught.value)


def test_an_empty_store_says_what_to_do(store):
    with pytest.raises(LineageError, match="rufus run"):
        store.resolve("sft")


def test_only_the_records_of_the_stage_are_read(store, checkpoint):
    """What keeps a trace quick in a store of many records."""
    for name in store.names():
        if name != "stages/coding_rl/checkpoint":
            for record in store.records(name):
                (store.path(record) / "record.json").write_text("{")
    assert store.resolve("coding_rl").record == checkpoint
    assert store.resolve(checkpoint.digest[:8]).record == checkpoint


def test_an_unreadable_record_beside_it_is_a_warning(store, checkpoint):
    other = make(store, "stages/coding_rl/checkpoint", "checkpoint", {"model.bin": "x"}, seed=9)
    file = store.path(other) / "record.json"
    file.write_text("{")
    ref = store.resolve("coding_rl")
    assert ref.record == checkpoint
    assert [str(file) in warning for warning in ref.warnings] == [True]
    (store.path(checkpoint) / "record.json").write_text("{")
    with pytest.raises(LineageError, match="not JSON"):
        store.resolve("coding_rl")
