"""What one benchmark run leaves behind: the score of every sample, with the protocol that made it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, FiniteFloat, ValidationError

from rufus_core.errors import DataError
from rufus_core.types import Frozen, Json


class Scores(Frozen):
    """One benchmark measured on one checkpoint.

    `per_problem` holds each problem's samples, in [0, 1] for verifiers; None is a sample lost to the infrastructure,
    which is not a zero. `digest` is the checkpoint's. `protocol` is all that a number depends on beside the checkpoint
    and must be equal for two numbers to be subtracted (EVAL-07): samples, temperature, budget, judge, user simulator.
    """

    benchmark: str
    stage: str
    checkpoint: str
    digest: str
    step: int | None = None
    protocol: dict[str, Json] = Field(default_factory=dict)
    per_problem: dict[str, tuple[FiniteFloat | None, ...]]

    def save(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Scores:
        """Raises DataError when the file can't be read or holds no scores."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise DataError(f"can't read these scores: {error.strerror}", where=str(path)) from error
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise DataError(f"these are no scores: {first['msg']}", where=f"{path} {field}".rstrip()) from error
