"""The newest artifacts of a name, without reading the record of every older one.

    by-name/<name>/<published>.<fingerprint>    empty marks; rebuildable

A mark says where to look first, and the record what is there: a mark that is lost or wrong costs time. One that claims
an earlier time than its record is the exception, and nothing writes such a mark.
"""

from __future__ import annotations

import os
from bisect import insort
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rufus_core.errors import LineageError
from rufus_core.lineage.files import told_plainly
from rufus_core.lineage.names import SHORT, slug
from rufus_core.lineage.record import Record

if TYPE_CHECKING:
    from rufus_core.lineage.store import Store

_CLOCKS_DIFFER = timedelta(minutes=10)  # by less, those of hosts may
_LAST = "9"  # sorts after every time: what can't be read may be the newest


def mark_published(root: Path, record: Record) -> None:
    """Mark a record in the store at `root`. Raises OSError."""
    folder = _marks(root, record.name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_stamp(record)}.{record.fingerprint[:SHORT]}").touch()


def newest_first(store: Store, name: str) -> Iterator[Record | LineageError]:
    """Records of one name, the newest first, each read when it is asked for; a fault for each unreadable one.

    Artifacts without a mark are read before the first answer, and marked.
    """
    known: dict[str, Record | LineageError] = {}
    marks = _newest_marks(store.root, name)
    folders = _folders(store.root, name)
    queue = sorted((marks[short], short) for short in folders & marks.keys())
    for short in folders - marks.keys():
        record = _read(store, name, short)
        if record is None:
            continue
        known[short] = record
        insort(queue, (_LAST if isinstance(record, LineageError) else _stamp(record), short))
        if isinstance(record, Record):
            with suppress(OSError):  # in a store that is read only, say
                mark_published(store.root, record)
    while queue:
        stamp, short = queue.pop()
        record = known.get(short) or _read(store, name, short)
        if isinstance(record, Record) and _stamp(record) < stamp:  # an older record was put back in its place
            known[short] = record
            insort(queue, (_stamp(record), short))
        elif record is not None:
            yield record


def newest(store: Store, name: str) -> Record | None:
    """The newest record of a name that can be read; None where there is none."""
    return next((each for each in newest_first(store, name) if isinstance(each, Record)), None)


def clock_warning(record: Record) -> str | None:
    """What a user must know of a record that is the newest only by a time that is yet to come; None for any other."""
    if record.published <= datetime.now(UTC) + _CLOCKS_DIFFER:
        return None
    when = f"{record.published.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return (
        f"{record.id} says that it was published on {when}, which is yet to come: "
        "a clock was or is wrong, and what was made after it counts as older (name that by its digest)"
    )


def _read(store: Store, name: str, short: str) -> Record | LineageError | None:
    try:
        return store.get(f"{name}/{short}")
    except LineageError as fault:
        return fault


def _folders(root: Path, name: str) -> set[str]:
    return set(_listed(root / "artifacts" / slug(name)))


def _newest_marks(root: Path, name: str) -> dict[str, str]:
    """The latest time of each short fingerprint that is marked."""
    latest: dict[str, str] = {}
    for mark in sorted(_listed(_marks(root, name))):
        stamp, _, short = mark.partition(".")
        latest[short] = stamp
    return latest


def _listed(folder: Path) -> list[str]:
    with told_plainly("read the store", folder):
        try:
            with os.scandir(folder) as found:
                return [entry.name for entry in found]
        except FileNotFoundError:
            return []


def _marks(root: Path, name: str) -> Path:
    return root / "by-name" / slug(name)


def _stamp(record: Record) -> str:
    return record.published.astimezone(UTC).strftime("%Y%m%dT%H%M%S%f")
