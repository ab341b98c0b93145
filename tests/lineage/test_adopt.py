import getpass

import pytest

from rufus_core.errors import LineageError
from rufus_core.lineage import trace
from rufus_core.lineage.adopt import adopt
from rufus_core.lineage.verify import verify_store
from tests.lineage.miniature import make


@pytest.fixture
def policy(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("weights")
    return folder


def files(folder):
    return {path.name: path for path in folder.iterdir()}


def test_an_adopted_checkpoint_is_the_stage_s_newest_and_says_where_it_is_from(store, policy):
    base = make(store, "base", "base", {"a": "a"})
    checked = []
    record = adopt(store, "sft", policy, files(policy), checked.append, base, "by hand")
    assert store.resolve("sft").record == record
    adopted = record.config["adopted"]
    assert (adopted["from"], adopted["by"], adopted["note"]) == (str(policy), getpass.getuser(), "by hand")
    assert adopted["digest"] == record.digest
    assert checked
    assert verify_store(store).differences == ()
    result = trace(store, store.resolve("sft"))
    assert [(edge.child, edge.role, edge.parent) for edge in result.edges] == [(record.id, "parent", base.id)]
    assert list((store.root / "attempts").iterdir()) == []


def test_the_same_policy_is_adopted_once_and_another_one_beside_it(store, policy):
    first = adopt(store, "sft", policy, files(policy), lambda _: None)
    assert adopt(store, "sft", policy, files(policy), lambda _: None) == first
    (policy / "model.safetensors").write_text("other")
    assert adopt(store, "sft", policy, files(policy), lambda _: None).id != first.id
    assert len(store.records("stages/sft/checkpoint")) == 2


def test_what_the_check_refuses_is_not_published_and_leaves_nothing(store, policy):
    def refuse(folder):
        raise LineageError("no policy")

    with pytest.raises(LineageError, match="no policy"):
        adopt(store, "sft", policy, files(policy), refuse)
    assert store.names() == []
    assert list((store.root / "attempts").iterdir()) == []


def test_a_policy_that_changes_while_it_is_copied_is_refused(store, policy):
    def change(folder):
        (folder / "config.json").write_text("{ }")

    with pytest.raises(LineageError, match="changed while"):
        adopt(store, "sft", policy, files(policy), change)


def test_a_name_that_is_no_name_is_refused(store, policy):
    with pytest.raises(LineageError, match="no artifact name"):
        adopt(store, "../x", policy, files(policy), lambda _: None)
