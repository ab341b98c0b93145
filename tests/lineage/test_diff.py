import json

from rufus_core.lineage import Draft, Provenance
from rufus_core.lineage.diff import diff, field_changes
from rufus_core.lineage.rows import row_changes
from tests.lineage.miniature import make, make_stage


def compared(store, old, new):
    return diff(store, store.resolve(old), store.resolve(new))


def said(pair):
    return {change.path: (change.old, change.new) for change in pair.fields}


def test_an_artifact_does_not_differ_from_itself(store, checkpoint):
    (pair,) = compared(store, checkpoint.id, "coding_rl").pairs
    assert pair.equal
    assert (pair.fields, pair.code, pair.rows) == ((), (), None)


def test_two_runs_of_a_stage_differ_down_to_where_the_difference_began(store, checkpoint, tmp_path):
    sft = store.resolve("sft").record
    again = make_stage(store, "coding_rl", sft, tmp_path / "chats.jsonl", seed=8)
    result = compared(store, checkpoint.id, again.id)
    pairs = {pair.role: pair for pair in result.pairs}
    assert pairs.keys() == {"", "training"}  # the problem sets are the same bytes, and so is the parent
    (old,), (new,) = ([r for r in store.records("stages/coding_rl/train") if r.seed == seed] for seed in (7, 8))
    assert said(pairs[""]) == {"seed": (7, 8), "inputs.training": (old.digest, new.digest)}
    assert said(pairs["training"]) == {"seed": (7, 8)}
    assert not any(pair.equal for pair in result.pairs)
    assert result.faults == ()


def test_settings_inputs_and_data_files_are_named_by_path_and_role(store, tmp_path):
    base = make(store, "base", "base", {"a": "a"})
    old = make(store, "x", "problems", {"a": "1"}, {"policy": base}, config={"deep": {"er": 1, "same": [1]}})
    new = make(store, "x", "problems", {"a": "2"}, config={"deep": {"er": 2, "same": [1]}, "more": {"b": None, "c": 1}})
    (pair,) = compared(store, old.id, new.id).pairs
    assert said(pair) == {
        "config.deep.er": (1, 2),
        "config.more": (None, {"b": None, "c": 1}),
        "inputs.policy": (base.digest, None),
    }


def test_absent_and_null_are_equal():
    assert list(field_changes({"a": None, "b": {"c": (1, 2)}}, {"b": {"c": [1, 2], "d": None}})) == []


def test_other_code_is_told_and_the_machine_is_not(store):
    def with_code(seed, **code):
        record = make(store, "base", "base", {"a": str(seed)}, seed=seed)
        attempt = store.attempt("code", record.fingerprint)
        draft = Draft(kind="base", version="1", provenance=Provenance(**code))
        return store.publish(attempt, draft)

    old = with_code(1, commit="a" * 40, packages={"torch": "2.1", "numpy": "1"}, host="here")
    new = with_code(2, commit="a" * 40, packages={"torch": "2.2", "numpy": "1"}, host="there", dirty=True)
    (pair,) = compared(store, old.id, new.id).pairs
    assert {c.path: (c.old, c.new) for c in pair.code} == {"dirty": (False, True), "packages.torch": ("2.1", "2.2")}
    assert pair.fields == ()


def test_stages_are_compared_down_to_their_data_but_not_their_parents(store, checkpoint):
    roles = [pair.role for pair in compared(store, "sft", "coding_rl").pairs]
    assert roles == ["", "training", "training.problems"]


def test_a_lost_input_is_a_fault_and_the_rest_is_compared(store, checkpoint, tmp_path):
    again = make_stage(store, "coding_rl", store.resolve("sft").record, tmp_path / "chats.jsonl", seed=8)
    lost = next(record for record in store.records("stages/coding_rl/train") if record.seed == 7)
    (store.path(lost) / "record.json").unlink()
    result = compared(store, checkpoint.id, again.id)
    assert [pair.role for pair in result.pairs] == [""]
    assert result.faults == (f"{lost.id}: the store no longer holds it",)


# Rows


def row(key, text="hi", source="chat", **more):
    return {"id": key, "source": source, "prompt": [{"role": "user", "content": text}], **more}


def test_rows_are_compared_by_id_within_their_file(store):
    old = [row("a"), row("b", answer=1), row("c", source="math")]
    new = [row("b", answer=2), row("c", source="math"), row("d", "new one", source="math")]

    def data(rows, heldout, seed):
        lines = {"train.jsonl": rows, "heldout.jsonl": heldout}
        files = {name: "".join(json.dumps(each) + "\n" for each in some) for name, some in lines.items()}
        return make(store, "data/sft", "problems", files, seed=seed)

    first, second = data(old, [row("h")], 1), data(new, [row("h")], 2)
    (pair,) = compared(store, first.id, second.id).pairs
    train = next(file for file in pair.rows.files if file.file == "train.jsonl")
    assert (train.num_old, train.num_new, train.added, train.removed, train.changed) == (3, 3, 1, 1, 1)
    assert train.by_source == {"chat": (0, 1, 1), "math": (1, 0, 0)}
    heldout = next(file for file in pair.rows.files if file.file == "heldout.jsonl")
    assert (heldout.added, heldout.removed, heldout.changed, heldout.by_source) == (0, 0, 0, {})
    examples = (pair.rows.added, pair.rows.removed, pair.rows.changed)
    assert [[each.id for each in some] for some in examples] == [["d"], ["a"], ["b"]]
    assert (pair.rows.added[0].text, pair.rows.added[0].source) == ("new one", "math")


def write(path, rows):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_rows_without_an_id_are_known_by_their_content(tmp_path):
    def example(text):
        return {"messages": [{"role": "user", "content": text}], "source": "mine"}

    old = write(tmp_path / "old", [example("a"), example("b"), example("b")])
    new = write(tmp_path / "new", [example("b"), example("c")])
    changes = row_changes({"examples.jsonl": old}, {"examples.jsonl": new})
    (file,) = changes.files
    assert (file.added, file.removed, file.changed) == (1, 2, 0)  # one of the two b's went
    assert [each.text for each in changes.added] == ["c"]


def test_a_file_that_one_side_lacks_counts_whole(tmp_path):
    (file,) = row_changes({}, {"train.jsonl": write(tmp_path / "x", [row("a"), row("b")])}).files
    assert (file.num_old, file.num_new, file.added) == (0, 2, 2)


def test_damaged_rows_are_a_fault_and_the_rest_is_compared(store):
    first = make(store, "data/sft", "problems", {"train.jsonl": "[1]\n"}, seed=1)
    second = make(store, "data/sft", "problems", {"train.jsonl": "{}\n"}, seed=2)
    result = compared(store, first.id, second.id)
    assert "train.jsonl:1: this line is no JSON object" in result.faults[0]
    assert result.pairs[0].rows is None
    assert said(result.pairs[0]) == {"seed": (1, 2)}
