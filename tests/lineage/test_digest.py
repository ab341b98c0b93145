import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.errors import LineageError
from rufus_core.lineage import FileEntry, HashCache, digest_tree
from rufus_core.lineage.digest import compare_files, digest_files, hash_file

ENTRIES = st.builds(FileEntry, size=st.integers(0, 9), sha256=st.sampled_from(["aa", "bb", "cc"]))
TABLES = st.dictionaries(st.sampled_from(["a", "a/b", "b", "c/d"]), ENTRIES, max_size=4)


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("one")
    (folder / "sub" / "b.txt").write_text("two")
    return folder


@given(TABLES, TABLES)
def test_tables_have_equal_digests_only_if_they_are_equal(one, other):
    assert (digest_files(one) == digest_files(other)) == (one == other)
    assert (compare_files(one, other) == ()) == (one == other)


def test_the_table_names_every_file(tree):
    files = digest_tree(tree).files
    assert list(files) == ["a.txt", "sub/b.txt"]
    assert files["a.txt"] == FileEntry(
        size=3, sha256="7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    )


def test_any_change_changes_the_digest_and_is_named(tree):
    before = digest_tree(tree)

    def changes():
        now = digest_tree(tree)
        assert now.sha256 != before.sha256
        return [(change.path, change.change) for change in compare_files(before.files, now.files)]

    (tree / "a.txt").write_text("onE")
    assert changes() == [("a.txt", "changed")]
    (tree / "a.txt").write_text("one")
    (tree / "a.txt").rename(tree / "c.txt")
    assert changes() == [("a.txt", "missing"), ("c.txt", "added")]
    (tree / "c.txt").unlink()
    assert changes() == [("a.txt", "missing")]
    (tree / "a.txt").write_text("one")
    assert digest_tree(tree) == before
    (tree / "empty").touch()
    assert changes() == [("empty", "added")]


def test_only_the_record_at_the_top_is_left_out(tree):
    before = digest_tree(tree)
    (tree / "record.json").write_text("{}")
    assert digest_tree(tree) == before
    (tree / "sub" / "record.json").write_text("{}")
    assert digest_tree(tree) != before


def test_links_inside_count_as_what_they_point_to(tree, tmp_path):
    (tree / "latest").symlink_to("sub")
    (tree / "link.txt").symlink_to("a.txt")
    linked = digest_tree(tree)
    copy = tmp_path / "copy"
    for path in linked.files:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes((tree / path).read_bytes())
    assert sorted(linked.files) == ["a.txt", "latest/b.txt", "link.txt", "sub/b.txt"]
    assert digest_tree(copy) == linked


@pytest.mark.parametrize("target", ["/etc/hostname", "..", "../outside", "nowhere", "self", "."])
def test_a_link_that_leaves_or_leads_nowhere_is_refused(tree, target):
    (tree.parent / "outside").mkdir()
    (tree / "self").symlink_to(target)
    with pytest.raises(LineageError, match="link") as caught:
        digest_tree(tree)
    assert str(caught.value).startswith(str(tree / "self"))


def test_two_folders_that_link_to_each_other_are_refused(tree):
    (tree / "other").mkdir()
    (tree / "other" / "to_sub").symlink_to("../sub")
    (tree / "sub" / "to_other").symlink_to("../other")
    with pytest.raises(LineageError, match="circle"):
        digest_tree(tree)


def test_a_pipe_is_refused_and_not_read(tree):
    os.mkfifo(tree / "pipe")
    with pytest.raises(LineageError, match="neither a file nor a folder"):
        digest_tree(tree)


def test_a_name_that_can_not_be_printed_is_refused(tree):
    (tree / "a\nb").touch()
    with pytest.raises(LineageError, match="rename it"):
        digest_tree(tree)


def test_the_cache_gives_the_same_digest_and_sees_changes(tree, tmp_path):
    file = tmp_path / "cache.json"
    cache = HashCache(file)
    assert digest_tree(tree, cache) == digest_tree(tree)
    cache.save()
    again = HashCache(file)
    assert digest_tree(tree, again) == digest_tree(tree)
    (tree / "a.txt").write_text("longer than before")
    assert digest_tree(tree, again) == digest_tree(tree)


def test_the_cache_hashes_a_file_again_only_when_it_looks_changed(tree, tmp_path):
    file, place = tmp_path / "cache.json", tree / "a.txt"
    cache = HashCache(file)
    true = cache(place)
    cache.save()
    file.write_text(file.read_text().replace(true.sha256, "remembered"))
    again = HashCache(file)
    assert again(place).sha256 == "remembered"
    place.write_text("two")  # the same size
    assert again(place) == hash_file(place) != true


@pytest.mark.parametrize("content", ["", "[]", "{", '{"/a": [1]}', "\x00"])
def test_a_damaged_cache_only_costs_time(tree, tmp_path, content):
    file = tmp_path / "cache.json"
    file.write_text(content)
    assert digest_tree(tree, HashCache(file)) == digest_tree(tree)
