import shutil

import pytest

from rufus_core.errors import LineageError
from rufus_core.lineage.aliases import FILE, Aliases
from rufus_core.lineage.impact import impact
from tests.lineage.miniature import make, make_recipe, make_stage


@pytest.fixture
def checkpoint(store, data):
    """The recipe, scores of its last checkpoint, and an artifact that has nothing to do with it."""
    checkpoint = make_recipe(store, data)
    make(store, "scores/coding_rl", "scores", {"a.json": "1"}, {"checkpoint": checkpoint})
    make(store, "other", "base", {"a": "other"})
    return checkpoint


OF_CODING_RL = ["stages/coding_rl/train", "stages/coding_rl/checkpoint", "scores/coding_rl"]
ALL = ["data/sft", "stages/sft/train", "stages/sft/checkpoint", "data/coding_rl", *OF_CODING_RL]


def names(result):
    return [each.name for each in result.touched]


def test_a_generator_touches_what_follows_from_it(store, checkpoint):
    result = impact(store, "arithmetic")
    assert result.is_a == "generator"
    assert names(result) == ALL
    first = result.touched[0]
    assert (first.via, first.stage, first.kind) == ((), "sft", "problems")
    assert result.touched[-1].via == (checkpoint.id,)


@pytest.mark.parametrize("named", ["path", "relative", "hash", "copy"])
def test_a_data_file_is_known_by_path_and_by_content(store, checkpoint, data, named, tmp_path, monkeypatch):
    sha256 = next(iter(store.records("data/sft")[0].external.values())).sha256
    monkeypatch.chdir(tmp_path)
    shutil.copy(data, tmp_path / "copy.jsonl")
    text = {"path": str(data), "relative": data.name, "hash": sha256[:8].upper(), "copy": "copy.jsonl"}[named]
    result = impact(store, text)
    assert (result.is_a, names(result)) == ("file", ALL)


def test_a_data_file_that_changed_or_is_gone_is_known_by_its_path(store, checkpoint, data):
    data.write_text("other")
    assert names(impact(store, str(data))) == ALL
    data.unlink()
    assert names(impact(store, str(data))) == ALL


def test_a_problem_set_and_a_stage_stand_for_all_of_their_name(store, checkpoint, data):
    make_stage(store, "coding_rl", store.resolve("sft").record, data, seed=8)
    assert names(impact(store, "data/coding_rl")).count("stages/coding_rl/checkpoint") == 2
    result = impact(store, "sft")
    assert result.is_a == "artifact"
    assert not {"stages/sft/checkpoint", "stages/sft/train", "data/sft"} & set(names(result))
    assert names(result).count("data/coding_rl") == 2


def test_an_id_or_a_digest_stands_for_one_artifact(store, checkpoint, data):
    again = make_stage(store, "coding_rl", store.resolve("sft").record, data, seed=8)
    assert names(impact(store, checkpoint.id)) == ["scores/coding_rl"]
    assert names(impact(store, checkpoint.digest[:8])) == ["scores/coding_rl"]
    assert names(impact(store, again.id)) == []


def test_what_was_made_from_the_same_bytes_is_touched_too(store, checkpoint):
    (problems,) = store.records("data/coding_rl")
    twin = make(store, "data/coding_rl", "problems", {"train.jsonl": "coding_rl problems"}, seed=9)
    assert twin.digest == problems.digest
    assert names(impact(store, twin.id)) == OF_CODING_RL


def aliases(result):
    return [(each.registered, each.alias, each.record_id) for each in result.aliases]


def test_the_aliases_of_what_is_touched_are_listed_and_those_that_moved_on_are_not(store, checkpoint, data):
    sft = store.resolve("sft").record
    other = make(store, "stages/rlhf/checkpoint", "checkpoint", {"model.bin": "adopted"})
    pointers = Aliases(store.root)
    for alias, record in (("sft", sft), ("coding_rl", checkpoint), ("rufus-air", checkpoint), ("rlhf", other)):
        pointers.point(alias, record, "rufus-air", "a test")
    every = [("rufus-air", "sft", sft.id), *(("rufus-air", a, checkpoint.id) for a in ("coding_rl", "rufus-air"))]
    assert aliases(impact(store, str(data))) == every
    assert aliases(impact(store, "data/coding_rl")) == every[1:]
    assert aliases(impact(store, "coding_rl")) == every[1:]  # a source's own aliases too
    pointers.point("rufus-air", other, "rufus-air", "a test")
    assert aliases(impact(store, "data/coding_rl")) == every[1:2]


def test_an_alias_of_the_same_bytes_is_touched(store, checkpoint):
    twin = make(store, "stages/coding_rl/checkpoint", "checkpoint", {"model.bin": "coding_rl 8 7", "config.json": "{}"})
    assert (twin.digest, twin.id == checkpoint.id) == (checkpoint.digest, False)
    Aliases(store.root).point("rufus-air", twin, "rufus-air", "a test")
    assert aliases(impact(store, "arithmetic")) == [("rufus-air", "rufus-air", twin.id)]


def test_unreadable_aliases_are_told_and_hide_nothing(store, checkpoint):
    (store.root / FILE).write_text("{}\n")
    result = impact(store, "arithmetic")
    assert (names(result), result.aliases) == (ALL, ())
    assert [f"{FILE}:1" in fault for fault in result.faults] == [True]


def test_an_unreadable_record_is_told(store, checkpoint):
    (record,) = store.records("stages/coding_rl/train")
    (store.path(record) / "record.json").write_text("{")
    result = impact(store, "arithmetic")
    assert len(result.faults) == 1
    assert "not JSON" in result.faults[0]
    assert "stages/coding_rl/checkpoint" not in names(result)  # the way to it is lost, and that was said


def test_records_that_name_each_other_do_not_hang(store):
    first = make(store, "a", "training", {"x": "x"})
    second = make(store, "b", "training", {"x": "y"}, inputs={"a": first})
    draft_inputs = {"b": second.as_input()}
    attempt = store.attempt("a", first.fingerprint)
    shutil.rmtree(store.path(first))
    (attempt.folder / "x").write_text("x")
    from tests.lineage.test_trace import record_draft

    store.publish(attempt, record_draft(first).model_copy(update={"inputs": draft_inputs}))
    assert names(impact(store, "a")) == ["b"]


@pytest.mark.parametrize("text", ["nope", "abc", "/no/such/file.jsonl", "", "0123456789"])
def test_what_touches_nothing_is_told(store, checkpoint, text):
    with pytest.raises(LineageError, match="nothing here was made with") as caught:
        impact(store, text)
    assert "a generator" in (caught.value.hint or "")
