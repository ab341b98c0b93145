"""Impact: everything that was made with the help of a source, down to the last score."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import datetime
from pathlib import Path

from rufus_core.errors import LineageError
from rufus_core.lineage.aliases import Aliases
from rufus_core.lineage.digest import hash_file
from rufus_core.lineage.files import told_plainly
from rufus_core.lineage.names import is_hex
from rufus_core.lineage.record import ExternalFile, Record
from rufus_core.lineage.resolve import MIN_DIGEST_DIGITS, checkpoint_name, training_name
from rufus_core.lineage.store import Store
from rufus_core.lineage.trace import generator_sources
from rufus_core.types import Frozen

_TOLD = {"name", "kind", "stage", "step", "digest", "published"}


class Touched(Frozen):
    """An artifact that the source went into. `via` are ids of what it was made from on the way, empty at the first."""

    id: str
    name: str
    kind: str
    stage: str | None
    step: int | None
    digest: str
    published: datetime
    via: tuple[str, ...]


class TouchedAlias(Frozen):
    """An alias that means a checkpoint which the source is or went into. `record_id` is that checkpoint."""

    alias: str
    registered: str
    record_id: str
    digest: str
    when: datetime


class Impact(Frozen):
    """`touched` is in order of publishing, so that each comes after what it was made from."""

    source: str
    is_a: str  # generator, file or artifact
    touched: tuple[Touched, ...]
    aliases: tuple[TouchedAlias, ...]
    faults: tuple[str, ...] = ()  # what can't be read: records and aliases that may be touched too


def impact(store: Store, source: str) -> Impact:
    """What a source touches.

    Args:
        source: a generator's name; a data file of the user's, by its path or six or more digits of its SHA-256; a
            stage or an artifact's name, for all that the store has of that name; an artifact's id or digest.

    Raises:
        LineageError: nothing in the store is it or was made with it.
    """
    listing = store.listing()
    is_a, begins = _beginnings(store, source, listing.records)
    below = _below(listing.records, begins)
    touched = below.keys() if is_a == "artifact" else below.keys() | begins
    faults = list(listing.faults)
    try:
        aliases = _meaning(store, {record.digest for record in listing.records if record.id in touched | begins})
    except LineageError as fault:
        aliases = ()
        faults.append(fault)
    return Impact(
        source=source,
        is_a=is_a,
        touched=tuple(
            Touched(via=below.get(record.id, ()), **record.model_dump(include=_TOLD), id=record.id)
            for record in listing.records
            if record.id in touched
        ),
        aliases=aliases,
        faults=tuple(map(str, faults)),
    )


def _meaning(store: Store, digests: Set[str]) -> tuple[TouchedAlias, ...]:
    """The aliases that mean one of these now. What they meant before doesn't count."""
    return tuple(
        TouchedAlias.model_validate(pointer.model_dump(include=set(TouchedAlias.model_fields)))
        for pointer in Aliases(store.root).current().values()
        if pointer.digest in digests
    )


def _beginnings(store: Store, source: str, records: Sequence[Record]) -> tuple[str, set[str]]:
    """What the source is, and ids: of its artifacts, or of the artifacts that were made with it directly."""
    for name in (checkpoint_name(source), training_name(source), source):
        named = {record.id for record in records if record.name == name}
        if named:
            return "artifact", named
    generated = {
        record.id
        for record in records
        if any(settings["generator"] == source for _, settings in generator_sources(record.config))
    }
    if generated:
        return "generator", generated
    known = _hash_of(source)
    reading = {
        record.id for record in records if any(_is_file(file, source, known) for file in record.external.values())
    }
    if reading:
        return "file", reading
    try:
        return "artifact", {store.resolve(source).record.id}
    except LineageError as error:
        hint = "give a generator, a data file's path or hash, a stage, or an artifact's name, id or digest"
        raise LineageError(f"nothing here was made with {source!r}", where=error.where, hint=hint) from error


def _below(records: Sequence[Record], begins: Set[str]) -> dict[str, tuple[str, ...]]:
    """Ids of what was made from these, at any remove, and what of it or of these each was made from.

    Inputs are followed by digest too: of two artifacts with the same bytes, both are what was read.
    """
    by_id = {record.id: record for record in records}
    children: dict[str, list[Record]] = {}
    for record in records:
        for source in record.inputs.values():
            for key in (source.record_id, source.digest):
                children.setdefault(key, []).append(record)
    via: dict[str, dict[str, None]] = {}
    waiting = sorted(begins)
    while waiting:
        parent = by_id[waiting.pop()]
        for child in (*children.get(parent.id, ()), *children.get(parent.digest, ())):
            if child.id not in via and child.id not in begins:
                waiting.append(child.id)
            via.setdefault(child.id, {})[parent.id] = None
    return {key: tuple(parents) for key, parents in via.items() if key not in begins}


def _hash_of(source: str) -> str | None:
    """The SHA-256, or its first digits, that a user gave or that the file at a path has now."""
    path = Path(source).expanduser()
    if path.is_file():
        with told_plainly("read this data file", path):
            return hash_file(path).sha256
    prefix = source.lower()
    return prefix if is_hex(prefix) and len(prefix) >= MIN_DIGEST_DIGITS else None


def _is_file(file: ExternalFile, source: str, known: str | None) -> bool:
    place = str(Path(source).expanduser().absolute())
    return source == file.path or place == file.resolved or (known is not None and file.sha256.startswith(known))
