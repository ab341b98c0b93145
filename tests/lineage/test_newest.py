import shutil

import pytest

from rufus_core.errors import LineageError
from rufus_core.lineage import Record
from rufus_core.lineage.newest import newest, newest_first
from tests.lineage.miniature import make

NAME = "stages/sft/checkpoint"


@pytest.fixture
def records(store):
    """Four records of one name, the newest first."""
    return [make(store, NAME, "checkpoint", {"model.bin": str(seed)}, seed=seed) for seed in range(4)][::-1]


def spoil(store, record, text="{"):
    (store.path(record) / "record.json").write_text(text)


def test_the_newest_comes_first(store, records):
    assert list(newest_first(store, NAME)) == records
    assert newest(store, NAME) == records[0]


def test_older_records_are_not_read(store, records):
    for record in records[1:]:
        spoil(store, record)
    assert next(newest_first(store, NAME)) == records[0]


@pytest.mark.parametrize("lost", ["by-name", f"by-name/{NAME.replace('/', '.')}"])
def test_lost_marks_are_made_again(store, records, lost):
    shutil.rmtree(store.root / lost)
    assert list(newest_first(store, NAME)) == records
    for record in records[1:]:
        spoil(store, record)
    assert next(newest_first(store, NAME)) == records[0]


def test_a_mark_without_its_artifact_is_ignored(store, records):
    shutil.rmtree(store.path(records[0]))
    assert list(newest_first(store, NAME)) == records[1:]


def test_a_mark_that_claims_too_much_is_not_believed(store, records):
    oldest = records[-1]
    folder = store.root / "by-name" / NAME.replace("/", ".")
    (folder / f"99990101T000000000000.{oldest.fingerprint[:16]}").touch()
    (folder / "nonsense").touch()
    assert list(newest_first(store, NAME)) == records


def test_an_unreadable_record_is_a_fault_in_its_place(store, records):
    spoil(store, records[1])
    found = list(newest_first(store, NAME))
    assert [each if isinstance(each, Record) else type(each) for each in found] == [
        records[0],
        LineageError,
        *records[2:],
    ]
    spoil(store, records[0])
    assert newest(store, NAME) == records[2]


def test_an_unreadable_record_without_a_mark_may_be_the_newest(store, records):
    shutil.rmtree(store.root / "by-name")
    spoil(store, records[2])
    assert isinstance(next(newest_first(store, NAME)), LineageError)


def test_a_name_that_nothing_has_is_empty(store):
    assert list(newest_first(store, NAME)) == []
    assert newest(store, NAME) is None
