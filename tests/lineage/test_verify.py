import dataclasses
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_core.lineage import Draft, Provenance, Store, fingerprint
from rufus_core.lineage.provenance import Code
from rufus_core.lineage.record import dump_record
from rufus_core.lineage.verify import verify_store
from tests.lineage.miniature import make, make_recipe


def told(store, records=None):
    return [(each.where, each.what, each.next) for each in verify_store(store, records).differences]


def test_an_intact_store_has_no_difference_and_is_left_as_it_was(store, checkpoint):
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    seen = []
    checked = verify_store(store, progress=lambda *told: seen.append(told))
    assert checked.differences == ()
    assert checked.num_artifacts == 7
    assert [total for _, total in seen] == [checked.num_bytes] * 8
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert (seen[0][0], seen[-1][0]) == (0, checked.num_bytes)
    assert checked.num_bytes == sum(e.size for r in store.records() for e in r.files.values())
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before


@pytest.fixture(scope="module")
def flipped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flipped")
    store = Store(folder / "store")
    make_recipe(store, folder / "chats.jsonl")
    return store, sorted(path for path in (store.root / "artifacts").rglob("*") if path.is_file())


@settings(max_examples=150)
@given(st.data())
def test_one_flipped_bit_anywhere_is_found(flipped, data):
    store, files = flipped
    file = data.draw(st.sampled_from(files))
    intact = file.read_bytes()
    place = data.draw(st.integers(0, len(intact) - 1))
    spoilt = bytearray(intact)
    spoilt[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        file.write_bytes(spoilt)
        found = verify_store(store).differences
        name = file.relative_to(store.root / "artifacts").parts[0]
        assert any(name in each.where.replace("/", ".") and each.next for each in found)
    finally:
        file.write_bytes(intact)


def test_a_flip_that_the_seal_can_not_see_is_found_too(store, checkpoint):
    record = store.path(checkpoint) / "record.json"
    record.write_text(record.read_text().replace(' "seed"', '\t"seed"'))
    assert told(store) == [(checkpoint.id, "record.json has other bytes than were written", "rufus run")]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "model.bin").unlink(), "model.bin missing"),
        (lambda folder: (folder / "more.bin").touch(), "more.bin added"),
        (lambda folder: (folder / "record.json").unlink(), "there is no record here"),
        (lambda folder: (folder / "record.json").write_text("{}"), "not a record"),
    ],
)
def test_what_is_missing_or_too_much_is_one_line_with_a_next_command(store, checkpoint, spoil, said):
    spoil(store.path(checkpoint))
    ((where, what, then),) = told(store)
    assert checkpoint.id in where or str(store.path(checkpoint)) in where
    assert said in what
    assert "rufus run" in then


def test_an_input_that_is_gone_or_another_is_told_by_what_was_made_from_it(store, checkpoint):
    (training,) = store.records("stages/coding_rl/train")
    shutil.rmtree(store.path(training))
    assert [(where, what) for where, what, _ in told(store)] == [
        (checkpoint.id, f"its training {training.id} is not in the store")
    ]
    attempt = store.attempt(training.name, training.fingerprint)
    (attempt.folder / "x").touch()
    other = store.publish(attempt, Draft(kind="training", version="1"))
    ((where, what, _),) = told(store)
    assert where == checkpoint.id
    assert training.digest[:12] in what
    assert other.digest[:12] in what


def test_a_data_file_of_the_user_s_is_compared_once(store, checkpoint, data):
    data.write_text("changed")
    assert [(where, what) for where, what, _ in told(store)] == [
        (str(data), "this data file changed since it was read")
    ]
    data.unlink()
    assert [(where, what) for where, what, _ in told(store)] == [(str(data), "this data file is gone")]


def test_only_what_is_named_is_compared(store, checkpoint):
    (base,) = store.records("base")
    (store.path(base) / "model.bin").write_text("x")
    assert told(store, [checkpoint]) == []
    assert len(told(store, [base])) == 1


def test_uncommitted_changes_that_a_record_names_are_compared(store):
    attempt = store.attempt("base", fingerprint("base", "1", {}, {}))
    code = Code(Provenance(commit="ab" * 20, dirty=True, dirty_diff_sha256="0" * 64), b"diff")
    record = store.publish(attempt, Draft(kind="base", version="1", provenance=code.provenance))
    assert "are gone" in told(store)[0][1]
    code.keep_diff(store.root)
    assert "were altered" in told(store)[0][1]
    assert told(store)[0][0] == record.id


def test_an_empty_home_has_nothing_to_compare(tmp_path):
    assert dataclasses.astuple(verify_store(Store(tmp_path / "none"))) == (0, 0, 0, (), ())
    assert not Path(tmp_path / "none").exists()


def test_a_forged_list_of_files_is_found(store):
    record = make(store, "base", "base", {"a": "a"})
    forged = record.model_copy(update={"digest": "0" * 64})
    (store.path(record) / "record.json").write_text(dump_record(forged))
    assert [what for _, what, _ in told(store)] == ["its digest isn't that of the files it lists"]
