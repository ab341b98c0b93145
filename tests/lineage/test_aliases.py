"""Aliases: names that move, in a file that only grows."""

from __future__ import annotations

import pytest

from rufus_core.errors import LineageError
from rufus_core.lineage import Record, Store
from rufus_core.lineage.aliases import FILE, Aliases
from tests.tasks.tracked import make


def checkpoint(store: Store, size: int) -> Record:
    return make(store.root.parent, "stages/sft/checkpoint", "checkpoint", {"weights": f"{size}"}, config={"size": size})


def test_an_alias_resolves_to_what_it_last_pointed_at(store: Store) -> None:
    old, new = checkpoint(store, 1), checkpoint(store, 2)
    aliases = Aliases(store.root)
    assert aliases.point("rufus-air", new, "rufus-air", "the first run")
    assert aliases.point("rufus-air", old, "rufus-air", "an older recipe again")
    assert not aliases.point("rufus-air", old, "rufus-air", "nothing moved")
    assert [(p.digest, p.why) for p in aliases.history()] == [
        (new.digest, "the first run"),
        (old.digest, "an older recipe again"),
    ]
    assert store.resolve("rufus-air").record == old
    assert store.resolve("sft").record == new  # a stage is its newest checkpoint


def test_an_alias_is_also_named_as_mlflow_names_it(store: Store) -> None:
    old, _ = checkpoint(store, 1), checkpoint(store, 2)
    Aliases(store.root).point("sft", old, "rufus-air", "a test")
    assert store.resolve("rufus-air@sft").record == old
    with pytest.raises(LineageError, match="no checkpoint 'other@sft'"):
        store.resolve("other@sft")


def test_an_alias_whose_artifact_is_gone_says_so(store: Store) -> None:
    record = checkpoint(store, 1)
    Aliases(store.root).point("rufus-air", record, "rufus-air", "a test")
    store.path(record).rename(store.root / "elsewhere")
    with pytest.raises(LineageError, match=rf"rufus-air is {record.id} .* no longer has it"):
        store.resolve("rufus-air")


def test_a_line_that_a_crash_cut_short_never_counted(store: Store) -> None:
    old, new = checkpoint(store, 1), checkpoint(store, 2)
    aliases, file = Aliases(store.root), store.root / FILE
    aliases.point("rufus-air", old, "rufus-air", "a test")
    whole = file.read_text()
    aliases.point("rufus-air", new, "rufus-air", "a test")
    file.write_text(file.read_text()[: len(whole) + 40])
    assert aliases.current()["rufus-air"].digest == old.digest
    assert aliases.point("rufus-air", new, "rufus-air", "again")
    assert [pointer.digest for pointer in aliases.history()] == [old.digest, new.digest]


def test_a_line_that_is_no_alias_is_named(store: Store) -> None:
    checkpoint(store, 1)
    (store.root / FILE).write_text('{"alias": "x"}\n')
    with pytest.raises(LineageError, match=rf"{FILE}:1: this line is no alias"):
        store.resolve("x")
