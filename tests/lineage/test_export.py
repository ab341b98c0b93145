import hashlib

import pytest

from rufus_core.errors import LineageError
from rufus_core.lineage import Provenance, Store
from rufus_core.lineage.export import export, verify_bundle
from rufus_core.lineage.provenance import Code
from rufus_core.lineage.verify import verify_store
from tests.lineage import miniature
from tests.lineage.miniature import make_recipe

DIFF = b"diff --git a/x b/x\n"
SHA256 = hashlib.sha256(DIFF).hexdigest()


@pytest.fixture
def store(tmp_path, monkeypatch):
    code = Code(Provenance(commit="ab" * 20, dirty=True, dirty_diff_sha256=SHA256), DIFF)
    monkeypatch.setattr(miniature, "PROVENANCE", code.provenance)
    store = Store(tmp_path / "store")
    make_recipe(store, tmp_path / "chats.jsonl")
    code.keep_diff(store.root)
    return store


def chain(store):
    return [*store.records()]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_bundle_is_a_home_with_records_and_equal_bytes_each_time(store, tmp_path):
    for name in ("a", "b"):
        export(store, chain(store), tmp_path / name)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    bundled = Store(tmp_path / "a" / "store")
    assert bundled.resolve("coding_rl").record == store.resolve("coding_rl").record
    assert bundled.records() == store.records()
    assert verify_bundle(tmp_path / "a") == []
    assert verify_store(bundled).num_collected == 7


def test_the_readme_says_what_to_type(store, tmp_path):
    export(store, chain(store), tmp_path / "a")
    text = (tmp_path / "a" / "README.md").read_text()
    for said in (
        f"git checkout {'ab' * 20}",
        f"git apply BUNDLE/store/diffs/{SHA256}.patch",
        f"rufus reproduce {store.resolve('coding_rl').record.id} --home BUNDLE",
        str(tmp_path / "chats.jsonl"),
    ):
        assert said in text
    assert (tmp_path / "a" / "store" / "diffs" / f"{SHA256}.patch").read_bytes() == DIFF


def test_weights_come_on_demand_and_only_intact(store, tmp_path):
    export(store, chain(store), tmp_path / "a", weights=True)
    bundled, record = Store(tmp_path / "a" / "store"), store.resolve("coding_rl").record
    assert bundled.changes(record) == ()
    assert verify_store(bundled).num_collected == 6
    (store.path(record) / "model.bin").write_text("x")
    with pytest.raises(LineageError, match="differ"):
        export(store, chain(store), tmp_path / "b", weights=True)
    assert not (tmp_path / "b").exists()


def test_each_file_that_changed_in_a_bundle_is_told(store, tmp_path):
    export(store, chain(store), tmp_path / "a")
    (tmp_path / "a" / "data.json").write_text("[]")
    (tmp_path / "a" / "more").touch()
    (tmp_path / "a" / "README.md").unlink()
    assert [(each.where, each.what.split()[0]) for each in verify_bundle(tmp_path / "a")] == [
        ("README.md", "missing"),
        ("data.json", "changed"),
        ("more", "added"),
    ]


def test_a_folder_that_holds_something_is_refused(store, tmp_path):
    with pytest.raises(LineageError, match="no empty folder"):
        export(store, chain(store), tmp_path)
