"""What a failed job tells whoever started it: `error.json` beside its document."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from rufus_core.errors import JobFailed, JobLost, Preempted, RankLost, RufusError
from rufus_core.types import Frozen

_FILE = "error.json"


class Failure(Frozen):
    type: str  # the error's class
    what: str
    where: str | None = None
    hint: str | None = None

    @property
    def preempted(self) -> bool:
        """Whether the job was told to stop and kept its state."""
        return self.type == Preempted.__name__

    def as_error(self) -> JobFailed:
        """JobLost where another try may succeed."""
        kind = JobLost if self.type == RankLost.__name__ else JobFailed
        return kind(self.what, where=self.where, hint=self.hint)


def tell_failure(folder: Path, error: RufusError) -> None:
    """Leave the error in a job's folder."""
    told = Failure(type=type(error).__name__, what=error.what, where=error.where, hint=error.hint)
    (folder / _FILE).write_text(told.model_dump_json() + "\n", encoding="utf-8")


def told_failure(folder: Path) -> Failure | None:
    """What the job of this folder told; None if nothing, or not to its end."""
    try:
        return Failure.model_validate_json((folder / _FILE).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def forget_failure(folder: Path) -> None:
    (folder / _FILE).unlink(missing_ok=True)
