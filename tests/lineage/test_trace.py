import shutil

import pytest

from rufus_core.lineage import trace
from rufus_core.lineage.trace import generator_sources
from tests.lineage.miniature import PROVENANCE, make, make_stage


def traced(store, name="coding_rl", **options):
    return trace(store, store.resolve(name), **options)


def edges(result):
    names = {node.id: node.name for node in result.nodes}
    return sorted((names[edge.child], edge.role, names[edge.parent]) for edge in result.edges)


def test_the_graph_reaches_the_base_model_and_every_source(store, checkpoint, data):
    result = traced(store)
    stages = ("coding_rl", "stages/sft/checkpoint"), ("sft", "base")
    expected = []
    for stage, parent in stages:
        expected += [
            (f"stages/{stage}/checkpoint", "training", f"stages/{stage}/train"),
            (f"data/{stage}", "chats", str(data)),
            (f"data/{stage}", "policy", parent),
            (f"data/{stage}", "sums", "arithmetic"),
            (f"stages/{stage}/train", "policy", parent),
            (f"stages/{stage}/train", "problems", f"data/{stage}"),
        ]
    assert edges(result) == sorted(expected)
    assert result.problems == ()
    assert {node.status for node in result.nodes if node.kind != "generator"} == {"intact"}


def test_children_come_before_their_parents_and_each_node_once(store, checkpoint):
    result = traced(store)
    order = [node.id for node in result.nodes]
    assert order[0] == checkpoint.id == result.root
    assert len(order) == len(set(order))
    assert all(order.index(edge.child) < order.index(edge.parent) for edge in result.edges)


def test_a_node_says_what_made_it_and_why_this_step(store, checkpoint):
    result = traced(store)
    node = result.node(checkpoint.id)
    assert (node.digest, node.fingerprint, node.step, node.seed) == (checkpoint.digest, checkpoint.fingerprint, 8, 7)
    assert (node.commit, node.dirty, node.packages) == (PROVENANCE.commit, True, PROVENANCE.packages)
    assert node.decision.chosen_step == 8
    assert [(each.step, each.value) for each in node.decision.candidates] == [(4, 0.25), (8, 0.5), (12, 0.375)]
    (training,) = (each for each in result.nodes if each.name == "stages/coding_rl/train")
    assert training.config["optimizer"]["lr_peak"] == 1e-3


def test_a_step_of_a_run_is_traced_from_its_training_run(store, checkpoint):
    result = traced(store, "coding_rl@12")
    assert (result.node(result.root).name, result.subfolder) == ("stages/coding_rl/train", "checkpoints/step-12")
    assert result.step == 12


SPOILS = {
    "changed": lambda place: place.write_bytes(bytes([place.read_bytes()[0] ^ 1]) + place.read_bytes()[1:]),
    "missing": lambda place: place.unlink(),
    "added": lambda place: place.with_name("extra").touch(),
}
ARTIFACTS = [
    ("base", "model.bin"),
    ("data/sft", "train.jsonl"),
    ("stages/sft/train", "checkpoints/step-4/model.bin"),
    ("stages/coding_rl/checkpoint", "config.json"),
]


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize(("name", "file"), ARTIFACTS)
def test_a_difference_anywhere_is_reported_with_its_file(store, checkpoint, name, file, spoil):
    (record,) = store.records(name)
    place = store.path(record) / file
    SPOILS[spoil](place)
    result = traced(store)
    (problem,) = result.problems
    differing = file if spoil != "added" else str(place.with_name("extra").relative_to(store.path(record)))
    assert record.id in problem
    assert f"{differing} {spoil}" in problem
    assert [node.id for node in result.nodes if node.problem] == [record.id]
    assert [(each.path, each.change) for each in result.node(record.id).changes] == [(differing, spoil)]
    assert traced(store, verify=False).problems == ()


def test_a_difference_above_the_traced_artifact_is_not_its_own(store, checkpoint):
    (store.path(checkpoint) / "model.bin").write_text("x")
    assert traced(store, "sft").problems == ()


def test_many_changed_files_stay_one_line_and_the_node_has_all(store):
    record = make(store, "base", "base", {f"{index}.bin": "x" for index in range(9)})
    for index in range(9):
        (store.path(record) / f"{index}.bin").write_text("y")
    result = traced(store, "base")
    assert result.problems[0].endswith("2.bin changed and 6 more")
    assert len(result.node(record.id).changes) == 9


@pytest.mark.parametrize(("spoil", "status"), [("changed", "changed"), ("missing", "missing")])
def test_a_data_file_of_the_user_that_changed_or_is_gone_is_reported_once(store, checkpoint, data, spoil, status):
    SPOILS[spoil](data)
    result = traced(store)
    (problem,) = result.problems
    assert str(data) in problem
    (node,) = (each for each in result.nodes if each.kind == "data")
    assert (node.status, node.rows) == (status, 2)


def test_a_data_file_is_found_at_its_relative_path_in_a_moved_project(store, data, tmp_path, monkeypatch):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    monkeypatch.chdir(old)
    (old / "chats.jsonl").write_text("{}\n")
    base = make(store, "base", "base", {"a": "a"})
    make_stage(store, "sft", base, type(old)("chats.jsonl"))
    monkeypatch.chdir(tmp_path)
    assert traced(store, "sft").problems == ()  # by its absolute path
    old.rename(new)
    assert "gone" in traced(store, "sft").problems[0]
    monkeypatch.chdir(new)
    assert traced(store, "sft").problems == ()


@pytest.mark.parametrize(
    ("spoil", "status", "said"),
    [
        (lambda folder: shutil.rmtree(folder), "missing", "no longer holds"),
        (lambda folder: (folder / "record.json").unlink(), "missing", "no longer holds"),
        (lambda folder: (folder / "record.json").write_text("{"), "unreadable", "not JSON"),
        (
            lambda folder: (folder / "record.json").write_text(
                (folder / "record.json").read_text().replace('"seed": 7', '"seed": 8')
            ),
            "unreadable",
            "altered",
        ),
    ],
)
def test_a_lost_parent_is_reported_and_the_rest_is_traced(store, checkpoint, spoil, status, said):
    (record,) = store.records("stages/sft/train")
    spoil(store.path(record))
    result = traced(store)
    (problem,) = result.problems
    assert record.id in problem
    assert said in problem
    assert result.node(record.id).status == status
    assert "base" not in {node.name for node in result.nodes}
    assert "stages/sft/checkpoint" in {node.name for node in result.nodes}


def test_a_parent_that_was_made_again_with_another_result_is_reported(store, checkpoint):
    (record,) = store.records("base")
    (store.path(record) / "model.bin").write_text("rotten")
    attempt = store.attempt("base", record.fingerprint)
    (attempt.folder / "model.bin").write_text("other weights")
    again = store.publish(attempt, record_draft(record))
    problems = traced(store).problems
    assert len(problems) == 2  # the problem set and the training run of SFT were made from the older one
    assert all(record.digest[:12] in line and again.digest[:12] in line for line in problems)


def record_draft(record):
    from rufus_core.lineage import Draft

    return Draft(**record.model_dump(include=set(Draft.model_fields)))


def test_records_that_name_each_other_do_not_hang(store):
    """No step can make such records, but a damaged store might hold them."""
    first = make(store, "a", "training", {"x": "x"})
    second = make(store, "b", "training", {"x": "x"}, inputs={"a": first})
    attempt = store.attempt("a", first.fingerprint)
    shutil.rmtree(store.path(first))
    (attempt.folder / "x").write_text("x")
    store.publish(attempt, record_draft(first).model_copy(update={"inputs": {"b": second.as_input()}}))
    assert {node.name for node in traced(store, "a").nodes} == {"a", "b"}


def test_sources_are_found_wherever_a_configuration_holds_them():
    source = {"generator": "g"}
    config = {"data": {"sources": {"one": source, "file": {"path": "x"}}}, "deep": {"er": {"sources": {"two": source}}}}
    assert list(generator_sources(config)) == [("one", source), ("two", source)]
    assert list(generator_sources({"sources": ["a"], "x": [1]})) == []


def test_a_source_without_a_problem_set_hangs_from_the_training_run(store):
    make(
        store,
        "stages/sft/train",
        "training",
        {"x": "x"},
        config={"data": {"sources": {"sums": {"generator": "arithmetic"}}}},
    )
    assert edges(traced(store, "stages/sft/train")) == [("stages/sft/train", "sums", "arithmetic")]
