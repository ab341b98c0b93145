"""Trace: from a checkpoint down to the base model and every data source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rufus_core.errors import LineageError
from rufus_core.lineage.canonical import canonical_json
from rufus_core.lineage.collected import read_collected, unexplained
from rufus_core.lineage.digest import FileChange, named
from rufus_core.lineage.external import external_state
from rufus_core.lineage.record import Decision, ExternalFile, Input, Record
from rufus_core.lineage.resolve import Ref
from rufus_core.lineage.store import Store
from rufus_core.types import Frozen, Json

Status = Literal["intact", "collected", "shared", "changed", "missing", "unreadable", "unchecked"]
UNCHECKED: Status = "unchecked"


class Node(Frozen):
    """One artifact, data file (`kind` "data") or generator of problems (`kind` "generator")."""

    id: str
    name: str
    kind: str
    status: Status
    problem: str = ""  # one line, when it is not what its record says
    changes: tuple[FileChange, ...] = ()
    digest: str | None = None
    fingerprint: str | None = None
    version: str | None = None
    stage: str | None = None
    step: int | None = None
    seed: int | None = None
    config: dict[str, Json] = Field(default_factory=dict)
    decision: Decision | None = None
    rows: int | None = None
    size: int | None = None  # bytes
    commit: str | None = None
    dirty: bool = False
    packages: dict[str, str] = Field(default_factory=dict)


class Edge(Frozen):
    child: str
    role: str
    parent: str


class Trace(Frozen):
    """Nodes come before their parents; the first is what was asked for."""

    root: str
    subfolder: str = ""
    step: int | None = None
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    problems: tuple[str, ...]  # one line for each thing that differs from its record

    def node(self, node_id: str) -> Node:
        return next(node for node in self.nodes if node.id == node_id)


def trace(store: Store, ref: Ref, verify: bool = True) -> Trace:
    """The lineage of an artifact.

    Args:
        verify: hash every artifact and data file on the way. What differs is reported, never raised.
    """
    walk = _Walk(store, verify)
    walk.visit(ref.record)
    nodes = tuple(reversed(walk.finished))  # a reversed post-order puts children first
    problems = (*ref.warnings, *(node.problem for node in nodes if node.problem), *walk.mismatches)
    return Trace(
        root=ref.record.id,
        subfolder=ref.subfolder,
        step=ref.step,
        nodes=nodes,
        edges=tuple(walk.edges),
        problems=problems,
    )


def generator_sources(config: Json) -> Iterator[tuple[str, dict[str, Json]]]:
    """(name, settings) of the sources in a configuration that a generator makes, wherever `sources` stands in it."""
    if not isinstance(config, dict):
        return
    for key, value in config.items():
        if key == "sources" and isinstance(value, dict):
            for name, source in value.items():
                if isinstance(source, dict) and source.get("generator"):
                    yield name, source
        else:
            yield from generator_sources(value)


class _Walk:
    """Depth first over the graph, each node once."""

    def __init__(self, store: Store, verify: bool) -> None:
        self._store, self._verify = store, verify
        self._seen: set[str] = set()
        self._told: set[tuple[str | None, str]] = set()
        self.finished: list[Node] = []
        self.edges: list[Edge] = []
        self.mismatches: list[str] = []

    def visit(self, record: Record) -> None:
        if not self._first_time(record.id):
            return
        for role, source in record.inputs.items():
            self._link(record, role, source.record_id)
            self._visit_input(record, source)
        for role, file in record.external.items():
            node_id = f"data:{file.sha256[:16]}:{file.path}"
            self._link(record, role, node_id)
            if self._first_time(node_id):
                self.finished.append(_data_node(node_id, file, self._verify))
        self._visit_generators(record)
        self.finished.append(_record_node(self._store, record, self._verify))

    def _visit_input(self, record: Record, source: Input) -> None:
        try:
            parent = self._store.get(source.record_id)
        except LineageError as error:
            self._lose(source, "unreadable", str(error))
            return
        if parent is None:
            self._lose(source, "missing", "the store no longer holds it")
            return
        if parent.digest != source.digest:
            self.mismatches.append(
                f"{record.id}: made from {source.record_id} with digest {source.digest[:12]}, "
                f"and the store now holds {parent.digest[:12]} there"
            )
        self.visit(parent)

    def _lose(self, source: Input, status: Status, why: str) -> None:
        if self._first_time(source.record_id):
            self.finished.append(
                Node(
                    id=source.record_id,
                    name=source.name,
                    kind="lost",
                    status=status,
                    problem=f"{source.record_id}: {why}",
                    digest=source.digest,
                )
            )

    def _visit_generators(self, record: Record) -> None:
        for role, settings in generator_sources(record.config):
            node_id = f"generator:{canonical_json([role, settings])}"
            # A training run's configuration repeats its problem set's sources: only the lowest artifact tells them.
            if (record.stage, node_id) in self._told:
                continue
            self._told.add((record.stage, node_id))
            self._link(record, role, node_id)
            if self._first_time(node_id):
                name = str(settings["generator"])
                self.finished.append(
                    Node(
                        id=node_id,
                        name=name,
                        kind="generator",
                        status=UNCHECKED,
                        config=settings,
                        rows=_count(settings),
                    )
                )

    def _link(self, child: Record, role: str, parent: str) -> None:
        self.edges.append(Edge(child=child.id, role=role, parent=parent))

    def _first_time(self, node_id: str) -> bool:
        first = node_id not in self._seen
        self._seen.add(node_id)
        return first


def _count(settings: dict[str, Json]) -> int | None:
    count = settings.get("count")
    return count if isinstance(count, int) else None


def _record_node(store: Store, record: Record, verify: bool) -> Node:
    status, problem, changes = _state(store, record) if verify else (UNCHECKED, "", ())
    return Node(
        id=record.id,
        name=record.name,
        kind=record.kind,
        status=status,
        problem=problem,
        changes=changes,
        digest=record.digest,
        fingerprint=record.fingerprint,
        version=record.version,
        stage=record.stage,
        step=record.step,
        seed=record.seed,
        config=record.config,
        decision=record.decision,
        size=sum(entry.size for entry in record.files.values()),
        commit=record.provenance.commit,
        dirty=record.provenance.dirty,
        packages=record.provenance.packages,
    )


def _state(store: Store, record: Record) -> tuple[Status, str, tuple[FileChange, ...]]:
    try:
        missing = store.changes(record)
        note = read_collected(store.path(record))
        changes = unexplained(note, missing)
    except LineageError as error:
        return "unreadable", f"{record.id}: {error}", ()
    if not changes:
        without: Status = "shared" if note and note.elsewhere else "collected"
        return without if missing else "intact", "", ()
    return "changed", f"{record.id}: differs from its record: {named(changes)}", changes


def _data_node(node_id: str, file: ExternalFile, verify: bool) -> Node:
    status, problem = _data_state(file) if verify else (UNCHECKED, "")
    return Node(
        id=node_id,
        name=file.path,
        kind="data",
        status=status,
        problem=problem,
        digest=file.sha256,
        rows=file.rows,
        size=file.size,
    )


def _data_state(file: ExternalFile) -> tuple[Status, str]:
    state = external_state(file)
    sizes = f" ({_sizes(file.size, state.entry.size)})" if state.status == "changed" and state.entry else ""
    return state.status, f"{file.path}: {state.what}{sizes}" if state.what else ""


def _sizes(then: int, now: int) -> str:
    return f"{then} bytes then and now" if then == now else f"{then} bytes then, {now} now"
