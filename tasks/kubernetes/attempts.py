"""Which attempt of a job is the last: `kubernetes.json` in its folder, written before the cluster is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from rufus_core.errors import LineageError
from rufus_core.lineage.files import write_whole
from rufus_core.types import Frozen


class Attempt(Frozen):
    """What the cluster calls it is said by `kind` and `namespace`, which the settings may name otherwise by now.

    `created` is known once the cluster said so: before that, the object may or may not be there.

    `over` says that it has ended, or that its node was given up; the next start is of another attempt.
    """

    number: int
    kind: Literal["job", "rayjob"]
    namespace: str
    created: bool = False
    over: bool = False

    @classmethod
    def last(cls, folder: Path) -> Attempt | None:
        """Raises LineageError where the file can't be read: to count anew could start a second job."""
        file = _file(folder)
        try:
            return cls.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            hint = "look with kubectl for a job of this folder that lives; then remove the file"
            raise LineageError(f"can't read which attempt is the last: {error}", where=str(file), hint=hint) from error

    def save(self, folder: Path) -> Attempt:
        write_whole(_file(folder), self.model_dump_json())
        return self


def _file(folder: Path) -> Path:
    return folder / "kubernetes.json"
