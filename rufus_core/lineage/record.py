"""Records: what stands beside an artifact and makes its step done."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from rufus_core.errors import LineageError
from rufus_core.lineage.canonical import canonical_json
from rufus_core.lineage.digest import FileEntry
from rufus_core.lineage.names import record_id
from rufus_core.types import Frozen, Json

SCHEMA_VERSION = 2  # 2: the provenance has an image; keys stay in the order in which a step read them
READABLE = (1, SCHEMA_VERSION)
DATA_KINDS = ("problems", "screen")  # of artifacts whose files are rows of data
CHECKPOINT_KINDS = ("base", "checkpoint")  # of artifacts that are a policy to go on from
_AGAIN = "move that folder out of the store; `rufus run` then makes the artifact again"


class _Part(Frozen):
    model_config = ConfigDict(ser_json_inf_nan="strings")  # a NaN stays visible, as "NaN"


class Input(_Part):
    """An artifact that a step read."""

    name: str
    digest: str
    record_id: str


class ExternalFile(_Part):
    """A data file of the user's. The store holds no copy, only what it was."""

    path: str  # as given
    resolved: str  # absolute, at that time
    sha256: str
    size: int  # bytes
    rows: int | None = None


class Candidate(_Part):
    step: int
    value: float | None = None


class Decision(_Part):
    """Why this step was carried forward."""

    rule: str
    chosen_step: int
    metric: str | None = None
    candidates: tuple[Candidate, ...] = ()
    reason: str = ""


class Provenance(_Part):
    """The code and the machine. Shown as drift; never part of a fingerprint."""

    commit: str | None = None  # None outside a git checkout
    dirty: bool = False
    dirty_diff_sha256: str | None = None  # the store keeps the diff itself, see `lineage/provenance.py`
    lock_sha256: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)
    python: str = ""
    host: str = ""
    platform: str = ""
    image: str | None = None  # the container's, where the environment names one


class Timings(_Part):
    started: datetime
    ended: datetime
    seconds: float


class Draft(_Part):
    """What the maker of an artifact says of it. The store adds the rest when it publishes.

    `config` is the resolved configuration that the fingerprint covers; `placement` is what it leaves out.
    `inputs` and `external` are by role. `links` lead to the servers that also show the step.
    """

    kind: str  # base, problems, reward_model, training, checkpoint, scores, ...
    version: str
    stage: str | None = None
    step: int | None = None
    config: dict[str, Json] = Field(default_factory=dict)
    placement: dict[str, Json] = Field(default_factory=dict)
    inputs: dict[str, Input] = Field(default_factory=dict)
    external: dict[str, ExternalFile] = Field(default_factory=dict)
    seed: int | None = None
    decision: Decision | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    provenance: Provenance = Provenance()
    timings: Timings | None = None
    links: dict[str, str] = Field(default_factory=dict)


class Record(Draft):
    schema_version: int = SCHEMA_VERSION
    name: str
    fingerprint: str
    digest: str
    files: dict[str, FileEntry]
    published: datetime

    @property
    def id(self) -> str:
        return record_id(self.name, self.fingerprint)

    def as_input(self) -> Input:
        return Input(name=self.name, digest=self.digest, record_id=self.id)


def dump_record(record: Record) -> str:
    """The text of a record file, sealed: its `seal` is the SHA-256 of all its other fields.

    Raises:
        LineageError: `config`, `placement` or another field holds what JSON can't say exactly.
    """
    canonical_json({"config": record.config, "placement": record.placement})
    return dump_sealed(json.loads(record.model_dump_json()))


def dump_sealed(content: dict[str, Any]) -> str:
    """The one spelling of a sealed JSON file."""
    return _spelt({**content, "seal": seal_of(content)})


def is_as_written(file: Path) -> bool:
    """Whether a sealed file that was read has the very bytes that were written: a seal doesn't cover spaces."""
    raw = file.read_bytes()
    return raw == _spelt(json.loads(raw)).encode()


def read_record(file: Path) -> Record:
    """Read a record file.

    Raises:
        LineageError: it can't be read, is no record, has another schema version, or was altered after it was written.
    """
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise LineageError(f"can't read this record: {error.strerror}", where=str(file)) from error
    return parse_record(raw, str(file))


def parse_record(raw: bytes, where: str) -> Record:
    """The record in these bytes. Raises LineageError as `read_record` does; `where` says whence they are."""
    try:
        content = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise LineageError("this record is not JSON", where=where, hint=_AGAIN) from error
    if not isinstance(content, dict) or "schema_version" not in content:
        raise LineageError("this is not a record of Rufus-Air", where=where, hint=_AGAIN)
    version = content["schema_version"]
    if version not in READABLE:
        raise LineageError(
            f"this record has schema version {version!r}, and this release reads versions 1 to {SCHEMA_VERSION}",
            where=where,
            hint=f"use the release that wrote it, or {_AGAIN}",
        )
    if content.pop("seal", None) != seal_of(content):
        raise LineageError("this record was altered after it was written", where=where, hint=_AGAIN)
    return _validated(content, where)


def _validated(content: dict[str, Any], where: str) -> Record:
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise LineageError(f"this record's {field} is wrong: {first['msg']}", where=where, hint=_AGAIN) from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _spelt(content: Any) -> str:
    return json.dumps(content, indent=1) + "\n"  # unsorted: a mixture depends on the order of its sources


def seal_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()
