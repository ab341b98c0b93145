"""Checkpoints made anew from their records, by real job processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rufus_core.errors import LineageError
from rufus_core.jobs.reproduce import Rebuilt, Reproduction, ancestry, drift, reproduce
from rufus_core.lineage import Draft, Provenance, Record, Store, external_file, fingerprint
from rufus_core.lineage.adopt import adopt
from tests.jobs.miniature import Runner
from tests.lineage.miniature import make

SFT = ["base", "data/sft", "stages/sft/train", "stages/sft/checkpoint"]


class Watcher:
    def __init__(self) -> None:
        self.told: list[str] = []

    def started(self, record: Record, number: int, total: int) -> None:
        self.told.append(f"{number}/{total} {record.name}")

    def progressed(self, done: int, total: int) -> None:
        assert 0 <= done <= total

    def finished(self, step: Rebuilt) -> None:
        self.told.append(step.result)


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_checkpoint_is_made_anew_bit_for_bit_and_the_store_is_only_read(chain: Runner, tmp_path: Path) -> None:
    root, watcher = chain.run("stages/sft/checkpoint"), Watcher()
    before = contents(chain.store.root)
    steps = tuple(reproduce(chain.store, root, tmp_path, watcher))
    assert [step.result for step in steps] == ["identical"] * 4
    assert [step.recorded for step in steps] == [step.found for step in steps]
    assert watcher.told[::2] == [f"{number}/4 {name}" for number, name in enumerate(SFT, start=1)]
    assert Reproduction(root=root.id, drift=(), steps=steps).identical
    assert contents(chain.store.root) == before
    (again,) = Store(tmp_path / "store").records("stages/sft/checkpoint")
    assert again.files == root.files


def test_only_the_step_itself_is_made_from_what_the_store_holds(chain: Runner, tmp_path: Path) -> None:
    root = chain.run("stages/sft/checkpoint")
    (step,) = reproduce(chain.store, root, tmp_path, Watcher(), only=True)
    assert (step.record_id, step.result) == (root.id, "identical")


def lying(chain: Runner, folder: Path, **changes: str) -> tuple[Store, Record]:
    """A store with an SFT checkpoint whose record is sealed, and whose bytes are not what its training gives."""
    training = chain.run("stages/sft/train")
    store = Store(folder / "store")
    truth = chain.run("stages/sft/checkpoint")
    for record in (chain.run("base"), chain.run("data/sft"), training):
        store.path(record).parent.mkdir(parents=True, exist_ok=True)
        store.path(record).symlink_to(chain.store.path(record))
    attempt = store.attempt(truth.name, truth.fingerprint)
    for name in truth.files:
        (attempt.folder / name).write_bytes((chain.store.path(truth) / name).read_bytes())
    for name, text in changes.items():
        (attempt.folder / name.replace("_json", ".json")).write_text(text)
    return store, store.publish(attempt, Draft.model_validate(truth.model_dump(include=set(Draft.model_fields))))


def test_the_file_that_differs_is_named(chain: Runner, tmp_path: Path) -> None:
    store, root = lying(chain, tmp_path, config_json="{}")
    (step,) = reproduce(store, root, tmp_path / "scratch", Watcher(), only=True)
    assert step.result == "different"
    assert [(change.path, change.change) for change in step.changes] == [("config.json", "changed")]
    result = Reproduction(root=root.id, drift=(), steps=(step,))
    assert not result.identical


def test_a_step_that_fails_is_told_in_its_own_words_and_ends_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    config = {"select": {"rule": "last"}}
    training = make(store, "stages/sft/train", "training", {"x": "x"})
    digests = {"training": training.digest}
    attempt = store.attempt("stages/sft/checkpoint", fingerprint("checkpoint", "1", {**config, "seed": 1}, digests))
    draft = Draft(
        kind="checkpoint", version="1", config=config, inputs={"training": training.as_input()}, stage="sft", seed=1
    )
    root = store.publish(attempt, draft)
    (step,) = reproduce(store, root, tmp_path / "scratch", Watcher(), only=True)
    assert step.result == "failed"
    assert "checkpoints" in step.error


def test_a_fingerprint_that_is_not_that_of_the_settings_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    attempt = store.attempt("base", "ab" * 32)
    root = store.publish(attempt, Draft(kind="base", version="2", seed=1))
    with pytest.raises(LineageError, match="fingerprint"):
        list(reproduce(store, root, tmp_path / "scratch", Watcher()))


def test_what_was_adopted_is_taken_as_it_is_if_it_is_intact(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    file = tmp_path / "model.safetensors"
    file.write_text("weights")
    root = adopt(store, "sft", tmp_path, {file.name: file}, lambda _: None)
    (step,) = reproduce(store, root, tmp_path / "scratch", Watcher())
    assert (step.result, step.found) == ("taken", root.digest)
    (store.path(root) / file.name).write_text("other")
    with pytest.raises(LineageError, match="not in the store as its record says"):
        list(reproduce(store, root, tmp_path / "scratch", Watcher()))


@pytest.mark.parametrize(
    ("now", "what"),
    [
        ("gone", "this data file is gone"),
        ("changed", "this data file changed since it was read"),
        ("/proc/self/mem", "can't read this data file: Input/output error"),  # a file, and nobody can read its start
    ],
)
def test_a_data_file_that_is_not_as_it_was_is_a_mistake_with_a_hint(tmp_path: Path, now: str, what: str) -> None:
    data = tmp_path / "my.jsonl"
    data.write_text("{}\n")
    store = Store(tmp_path / "store")
    base = make(store, "base", "base", {"x": "x"})
    root = make(
        store, "data/sft", "problems", {"x": "x"}, inputs={"base": base}, external={"mine": external_file(str(data))}
    )
    data.unlink()
    if now == "changed":
        data.write_text("other")
    elif now != "gone":
        data.symlink_to(now)
    watcher = Watcher()
    with pytest.raises(LineageError) as caught:
        list(reproduce(store, root, tmp_path / "scratch", watcher))
    assert watcher.told == []  # before the base is made for nothing
    assert (caught.value.what, caught.value.where) == (what, str(data))
    assert caught.value.hint == f"put back the file of sha256 {root.external['mine'].sha256[:12]}"


def test_ancestry_puts_inputs_first_and_names_a_record_that_is_gone(chain: Runner, tmp_path: Path) -> None:
    assert [record.name for record in ancestry(chain.store, chain.run("stages/sft/checkpoint"))] == SFT
    with pytest.raises(LineageError, match=r"whose record is gone"):
        ancestry(Store(tmp_path / "none"), chain.run("stages/sft/checkpoint"))


def test_drift_says_what_is_not_as_it_was() -> None:
    then = Provenance(commit="a" * 40, lock_sha256="b" * 64, packages={"torch": "1", "numpy": "2"}, python="3.11.1")
    record = Record.model_validate(
        {
            "kind": "training",
            "version": "1",
            "name": "x",
            "fingerprint": "c" * 64,
            "digest": "d" * 64,
            "files": {},
            "published": "2030-01-01T00:00:00Z",
            "provenance": then,
        }
    )
    assert drift([record], then, {"training": "1"}) == ()
    now = then.model_copy(update={"commit": None, "packages": {"torch": "2", "numpy": "2"}})
    assert drift([record, record], now, {"training": "2"}) == (
        "commit: aaaaaaaaaaaa then, none now",
        "torch: 1 then, 2 now",
        "training steps: version 1 then, 2 now",
    )
