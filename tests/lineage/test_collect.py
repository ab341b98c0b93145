import json
import subprocess
import sys

import pytest

from rufus_core.errors import LineageError
from rufus_core.lineage.collect import collect, collectable
from rufus_core.lineage.collected import read_collected
from rufus_core.lineage.verify import verify_store
from tests.lineage.miniature import make, make_stage

VERSIONS = dict.fromkeys(("base", "problems", "training", "checkpoint", "scores"), "1")


def items(store, **options):
    return {(item.what, item.id): item for item in collectable(store, VERSIONS, **options)}


def the(store, name):
    return store.records(name)[-1]


def test_of_a_finished_recipe_only_steps_that_were_not_chosen_can_go(store, checkpoint):
    found = items(store)
    assert set(found) == {("steps", the(store, f"stages/{stage}/train").id) for stage in ("sft", "coding_rl")}
    for item in found.values():
        assert item.files == ("checkpoints/step-12/model.bin", "checkpoints/step-4/model.bin")
        assert item.num_bytes == sum((item.folder / path).stat().st_size for path in item.files)
        assert "4, 12" in item.loss


def test_listing_removes_nothing_and_collecting_keeps_every_record(store, checkpoint):
    files = sorted(store.root.rglob("*"))
    listed = collectable(store, VERSIONS)
    assert sorted(store.root.rglob("*")) == files
    records = store.records()
    assert collect(store, listed) == sum(item.num_bytes for item in listed)
    assert store.records() == records
    training = the(store, "stages/sft/train")
    assert read_collected(store.path(training)).files == listed[0].files
    assert [path.name for path in (store.path(training) / "checkpoints").iterdir()] == ["step-8"]
    checked = verify_store(store)
    assert (checked.num_collected, checked.differences) == (2, ())
    assert collectable(store, VERSIONS) == []


def test_what_was_made_again_from_something_else_goes_and_what_still_counts_stays(store, checkpoint, data):
    old = {record.id for record in store.records() if record.stage == "coding_rl"}
    make_stage(store, "coding_rl", the(store, "stages/sft/checkpoint"), data, seed=8)
    found = items(store)
    assert {id_ for what, id_ in found if what == "artifact"} == old
    assert "can't be measured" in found["artifact", checkpoint.id].loss


def test_keep_names_the_stages_that_matter(store, checkpoint):
    scores = make(store, "scores/coding_rl", "scores", {"x.json": "1"}, inputs={"checkpoint": checkpoint})
    kept = {id_ for what, id_ in items(store, keep=["sft"]) if what == "artifact"}
    assert kept == {r.id for r in store.records() if r.stage == "coding_rl"} | {scores.id}
    assert not [id_ for what, id_ in items(store, keep=["coding_rl"]) if what == "artifact"]
    with pytest.raises(LineageError, match="no checkpoint of 'nope'"):
        items(store, keep=["nope"])


def test_what_a_running_job_reads_is_never_collected(store, checkpoint):
    training = the(store, "stages/coding_rl/train")
    found = items(store, keep=["sft"], in_use=[training.id])
    assert ("artifact", training.id) not in found
    assert ("artifact", the(store, "data/coding_rl").id) not in found
    assert ("artifact", checkpoint.id) in found


def test_a_collected_artifact_is_made_again_in_its_place(store, checkpoint):
    collect(store, collectable(store, VERSIONS, keep=["sft"]))
    assert store.find(checkpoint.name, checkpoint.fingerprint) is None
    again = make(
        store,
        checkpoint.name,
        "checkpoint",
        {"model.bin": "coding_rl 8 7", "config.json": "{}"},
        inputs={"training": the(store, "stages/coding_rl/train")},
        step=8,
        decision=checkpoint.decision,
    )
    assert (again.digest, again.id) == (checkpoint.digest, checkpoint.id)
    assert store.find(checkpoint.name, checkpoint.fingerprint) == again
    assert read_collected(store.path(again)) is None


def test_what_can_not_be_made_again_says_why(store, checkpoint, data):
    data.write_text("other")
    assert "UNREPRODUCIBLE" in items(store, keep=["sft"])["artifact", checkpoint.id].loss
    newer = {**VERSIONS, "training": "2"}
    losses = [item.loss for item in collectable(store, newer) if item.what == "steps"]
    assert all("UNREPRODUCIBLE" in loss for loss in losses)


def test_dead_attempts_and_replaced_artifacts_go_and_living_ones_stay(store, checkpoint, tmp_path):
    program = (
        "import sys; from pathlib import Path; from rufus_core.lineage import Store\n"
        "attempt = Store(Path(sys.argv[1])).attempt('data/x', 'ab' * 32)\n"
        "(attempt.folder / 'half').write_text('half'); (attempt.state / 'state').write_text('state')"
    )
    subprocess.run([sys.executable, "-c", program, str(store.root)], check=True)
    living = store.attempt("data/y", "cd" * 32)
    (store.path(checkpoint) / "model.bin").write_text("broken")
    make(store, checkpoint.name, "checkpoint", {"model.bin": "coding_rl 8 7", "config.json": "{}"},
         inputs={"training": the(store, "stages/coding_rl/train")}, step=8, decision=checkpoint.decision)  # fmt: skip
    found = items(store)
    assert {what for what, _ in found} == {"steps", "attempt", "replaced"}
    (dead,) = (item for item in found.values() if item.what == "attempt")
    assert dead.id == f"data/x/{'ab' * 8}"
    assert "from its beginning" in dead.loss
    collect(store, list(found.values()))
    assert list((store.root / "attempts").iterdir()) == [living.home]
    (replaced,) = (store.root / "replaced").iterdir()
    assert [path.name for path in replaced.iterdir()] == ["record.json"]
    assert items(store) == {}


def test_an_altered_note_is_a_difference(store, checkpoint):
    collect(store, collectable(store, VERSIONS))
    note = store.path(the(store, "stages/sft/train")) / "collected.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "files": []}))
    (found,) = verify_store(store).differences
    assert "altered" in found.what
    assert str(note) == found.where


def test_a_record_that_can_not_be_read_stops_the_collection(store, checkpoint):
    (store.path(checkpoint) / "record.json").write_text("")
    with pytest.raises(LineageError, match="not JSON"):
        items(store)
