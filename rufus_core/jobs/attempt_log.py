"""The problems that a screen has played so far: what it goes on from after its death."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from rufus_core.evaluation.screening import Attempts
from rufus_core.types import Frozen


class _Line(Frozen):
    sampler: str
    id: str
    attempts: Attempts


class AttemptLog:
    """One line a problem and sampler, written as soon as all of its attempts are over.

    The file belongs to one fingerprint, so that its problems, policy, settings and seed are the screen's own. A last
    line that was cut off is played again.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "attempts.jsonl"
        self._known: dict[tuple[str, str], Attempts] = {}
        size = 0
        for text in self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []:
            try:
                line = _Line.model_validate_json(text)
            except ValidationError:
                break
            if not text.endswith(b"\n"):
                break
            self._known[line.sampler, line.id] = line.attempts
            size += len(text)
        self._file = self._path.open("ab")
        self._file.truncate(size)

    def __enter__(self) -> AttemptLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def add(self, sampler: str, problem_id: str, attempts: Attempts) -> None:
        line = _Line(sampler=sampler, id=problem_id, attempts=attempts)
        self._file.write(line.model_dump_json().encode() + b"\n")
        self._file.flush()
        self._known[sampler, problem_id] = attempts

    def of(self, problem_id: str, samplers: Iterable[str]) -> dict[str, Attempts]:
        """The attempts of each of these samplers that has played the problem."""
        return {each: self._known[each, problem_id] for each in samplers if (each, problem_id) in self._known}

    def __len__(self) -> int:
        return len(self._known)
