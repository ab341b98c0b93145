import os
import subprocess

import pytest

from rufus_core.lineage import collect_provenance
from rufus_core.lineage.provenance import collect_code, diff_file


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True, env=env
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "rufus_core").mkdir()
    (tmp_path / "rufus_core" / "__init__.py").write_text("")
    (tmp_path / "uv.lock").write_text("locked")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def test_a_clean_checkout(checkout):
    found = collect_provenance(checkout)
    assert found.commit == git(checkout, "rev-parse", "HEAD")
    assert (found.dirty, found.dirty_diff_sha256) == (False, None)
    assert found.lock_sha256 is not None
    assert found.packages["torch"]
    assert found.python
    assert found.platform


def test_changed_and_new_code_make_it_dirty_and_other_files_do_not(checkout):
    (checkout / "notes.txt").write_text("not code")
    assert not collect_provenance(checkout).dirty
    (checkout / "rufus_core" / "new.py").write_text("x = 1")
    new = collect_provenance(checkout)
    (checkout / "rufus_core" / "new.py").write_text("x = 2")
    newer = collect_provenance(checkout)
    (checkout / "rufus_core" / "__init__.py").write_text("y = 1")
    changed = collect_provenance(checkout)
    assert new.dirty
    assert newer.dirty
    assert changed.dirty
    assert len({new.dirty_diff_sha256, newer.dirty_diff_sha256, changed.dirty_diff_sha256}) == 3


def test_outside_a_checkout_there_is_no_commit(tmp_path):
    found = collect_provenance(tmp_path)
    assert (found.commit, found.dirty, found.lock_sha256) == (None, False, None)


def test_a_package_installed_inside_another_checkout_is_not_at_its_commit(checkout):
    inside = checkout / "venv" / "rufus_core"
    inside.mkdir(parents=True)
    (inside / "__init__.py").touch()
    assert collect_provenance(checkout / "venv").commit is None


def test_works_without_git(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert collect_provenance(checkout).commit is None


def test_a_git_hook_s_variables_do_not_mislead(checkout, monkeypatch):
    commit = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert collect_provenance(checkout).commit == commit


def test_the_changes_are_kept_once_and_can_be_applied_to_the_commit(checkout, tmp_path_factory):
    git(checkout, "config", "diff.noprefix", "true")
    git(checkout, "config", "color.ui", "always")
    (checkout / "rufus_core" / "__init__.py").write_bytes(b"caf\xe9 = 1\n")
    (checkout / "rufus_core" / "new.py").write_text("x = 1\n")
    (checkout / "rufus_core" / "empty.py").touch()
    (checkout / "rufus_core" / "table.bin").write_bytes(bytes(range(256)))
    store, clone = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("clone")
    code = collect_code(checkout)
    code.keep_diff(store)
    code.keep_diff(store)
    (kept,) = (store / "diffs").iterdir()
    assert kept == diff_file(store, code.provenance.dirty_diff_sha256)
    git(clone, "clone", "-q", str(checkout), ".")
    git(clone, "checkout", "-q", code.provenance.commit)
    git(clone, "apply", str(kept))
    for name in ("__init__.py", "new.py", "empty.py", "table.bin"):
        assert (clone / "rufus_core" / name).read_bytes() == (checkout / "rufus_core" / name).read_bytes()
    assert collect_code(clone).provenance.dirty_diff_sha256 == code.provenance.dirty_diff_sha256


def test_a_clean_checkout_keeps_no_diff(checkout, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    collect_code(checkout).keep_diff(store)
    assert list(store.iterdir()) == []


def test_a_container_s_image_is_told(checkout, monkeypatch):
    assert collect_provenance(checkout).image is None
    monkeypatch.setenv("RUFUS_IMAGE", "rufus-air@sha256:12ab")
    assert collect_provenance(checkout).image == "rufus-air@sha256:12ab"
