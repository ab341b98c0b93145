"""A job on paper: one JSON document that a process can carry out alone, wherever it is started."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from rufus_core.errors import LineageError
from rufus_core.lineage.record import Record
from rufus_core.lineage.shared import Shared
from rufus_core.lineage.store import Store
from rufus_core.types import Frozen, Json


class InputArtifact(Frozen):
    name: str
    digest: str
    record_id: str
    path: Path

    @classmethod
    def of(cls, record: Record, path: Path) -> InputArtifact:
        return cls(name=record.name, digest=record.digest, record_id=record.id, path=path)


class JobDocument(Frozen):
    """One step with its inputs resolved. `placement`, the paths and the URL are no part of the step's identity.

    With `force` it is carried out also where its artifact is intact, which is then replaced if other bytes come out.
    """

    name: str
    kind: str
    title: str
    version: str
    fingerprint: str
    config: dict[str, Json]
    stage: str | None = None
    inputs: dict[str, InputArtifact] = Field(default_factory=dict)
    external: dict[str, str] = Field(default_factory=dict)
    seed: int = 0
    store: Path
    shared: str | None = None  # URL of the root that the store shares
    placement: dict[str, Json] = Field(default_factory=dict)
    progress: Path
    links: dict[str, str] = Field(default_factory=dict)
    force: bool = False

    def open_store(self) -> Store:
        """Raises ConfigError where this machine can't read the shared root."""
        return Store(self.store, shared=Shared.at(self.shared))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> JobDocument:
        """Raises LineageError when the file is missing or is no job document."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise LineageError(f"can't read this job document: {error}", where=str(path)) from error
