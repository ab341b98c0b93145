"""Problem sets and screens as `rufus problems` reads them: out of the store, or out of a user's file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rufus_core.cli.output import chosen
from rufus_core.errors import DataError, LineageError
from rufus_core.evaluation.problem_sets import SetFacts, summarise
from rufus_core.evaluation.screening import Screened
from rufus_core.lineage.newest import newest, newest_first
from rufus_core.lineage.record import DATA_KINDS, Record
from rufus_core.lineage.sharing import fetch
from rufus_core.lineage.store import Store
from rufus_core.types import Json, Problem, Split

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SCREENS = ("screens/", "rescreens/")


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """One set, by split. `report` is what its job counted; `unit` is what prompts are measured in."""

    title: str
    splits: dict[Split, list[Problem]]
    report: dict[str, Json] = field(default_factory=dict)
    faults: tuple[str, ...] = ()  # of rows of a user's file that can't be graded
    tokenizer: Tokenizer | None = None
    unit: str = "words"

    @property
    def problems(self) -> list[Problem]:
        """What is trained on; of a set that holds no such problems (the SFT mixture), those set aside."""
        return self.splits.get("train") or [each for some in self.splits.values() for each in some]

    def facts(self) -> SetFacts:
        return summarise(self.problems, self.count)

    def of_source(self, source: str | None) -> ProblemSet:
        """Its problems of one source. Raises DataError where there are none."""
        if source is None:
            return self
        kept = {split: [each for each in some if each.source == source] for split, some in self.splits.items()}
        if not any(kept.values()):
            known = dict.fromkeys(each.source for some in self.splits.values() for each in some)
            raise DataError(f"no problem is of the source {source!r}", where=self.title, hint=f"of {', '.join(known)}")
        return replace(self, splits=kept)

    def problem(self, prefix: str) -> Problem:
        """The problem whose id starts so. Raises DataError where none or several do."""
        every = {each.id: each for some in self.splits.values() for each in some}
        found = [key for key in every if key.startswith(prefix.lower())]
        if len(found) != 1:
            what = f"{len(found) or 'no'} problems have an id that starts with {prefix!r}"
            hint = ", ".join(found[:5]) if found else "--num 5 lists some"
            raise DataError(what, where=self.title, hint=hint)
        return every[found[0]]

    def as_json(self) -> dict[str, Json]:
        return {
            "set": self.title,
            "splits": {split: len(some) for split, some in self.splits.items()},
            "unit": self.unit,
            **self.facts().model_dump(mode="json"),
            "faults": dict(Counter(self.faults)),
            "report": self.report,
        }

    def count(self, texts: Sequence[str]) -> list[int]:
        if self.tokenizer is None:
            return [len(text.split()) for text in texts]
        return [len(each.ids) for each in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]


@dataclass(frozen=True, slots=True)
class Screen:
    """A screen out of the store: its header, and what became of each problem."""

    record: Record
    header: dict[str, Json]
    rows: list[Screened]

    @property
    def policy(self) -> str:
        """Who screened, for example `stages/sft/checkpoint 3fa9c1d27be0`."""
        told = []
        for name, each in self.header["samplers"].items():
            step = f"@{each['step']}" if "step" in each else ""
            told.append(f"{each['name']}{step} {each['digest'][:12]}" if each else name)
        return " or ".join(told)


def find_set(store: Store, what: str) -> ProblemSet:
    """The set that a user names: a file, a stage's newest, or an artifact.

    Raises:
        DataError: the file can't be read as problems.
        LineageError: there is no such artifact, or it is no problem set.
    """
    path = Path(what).expanduser()
    if os.path.isfile(path):  # noqa: PTH113 - False also for a name that is too long
        return _of_file(store, path)
    if path.suffix in (".jsonl", ".gz"):
        raise DataError("there is no such file", where=what, hint="give the path of a .jsonl file, or name a stage")
    name = f"data/{what}"
    try:
        record = chosen(store, name if name in store.names() else what).record
    except LineageError as error:
        error.hint = f"{error.hint}; `rufus problems build STAGE` makes a set"
        raise
    if record.kind not in DATA_KINDS:
        hint = f"make one with `rufus problems build {record.stage}`" if record.stage else "name a stage or a file"
        raise LineageError(f"{record.id} is no problem set: its kind is {record.kind}", hint=hint)
    return load_set(store, record)


def load_set(store: Store, record: Record) -> ProblemSet:
    """A problem set, or what a screen left of one."""
    from rufus_core.jobs.problem_files import load_problems

    folder = fetch(store, record)
    splits: dict[Split, list[Problem]] = {
        split: load_problems(folder, split) for split in get_args(Split) if (folder / f"{split}.jsonl").exists()
    }
    tokenizer, unit = _tokenizer(store)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return ProblemSet(f"{record.name} {record.digest[:12]}", splits, report, tokenizer=tokenizer, unit=unit)


def load_screen(store: Store, record: Record) -> Screen:
    """Raises LineageError for a screen that an earlier release made, which kept less."""
    folder = fetch(store, record)
    header = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    if "samplers" not in header:
        raise LineageError("an earlier release made this screen, and kept no pass counts", where=record.id)
    lines = (folder / "screen.jsonl").read_text(encoding="utf-8").splitlines()
    return Screen(record, header, [Screened.model_validate_json(line) for line in lines])


def earlier_screen(store: Store, record: Record) -> Record | None:
    """What a screen is compared with: the recipe's own of the same problems, else the newest other one."""
    _, stage, key = record.name.split("/")
    for prefix in SCREENS:
        for each in newest_first(store, f"{prefix}{stage}/{key}"):
            if isinstance(each, Record) and each.id != record.id and each.version == record.version:
                return each
    return None


def screens_on(store: Store, problem_id: str) -> list[tuple[Screen, Screened]]:
    """Every screen that played a problem, oldest first, and what it found."""
    found = []
    for name in store.names():
        if name.startswith(SCREENS):
            for record in store.records(name):
                try:
                    screen = load_screen(store, record)
                except LineageError:  # collected, damaged or of an earlier release: the others still tell something
                    continue
                found += [(screen, row) for row in screen.rows if row.id == problem_id]
    return sorted(found, key=lambda pair: pair[0].record.published)


def _of_file(store: Store, path: Path) -> ProblemSet:
    from rufus_core.jobs.problem_rows import read_problem_file
    from rufus_core.stages import STAGE_OF_FAMILY  # torch

    faults: list[str] = []
    rows = read_problem_file(path, path.stem, list(STAGE_OF_FAMILY), on_fault=lambda _, fault: faults.append(fault))
    problems = list(rows)
    tokenizer, unit = _tokenizer(store)
    return ProblemSet(str(path), {"train": problems}, faults=tuple(faults), tokenizer=tokenizer, unit=unit)


def _tokenizer(store: Store) -> tuple[Tokenizer | None, str]:
    """The newest base policy's; None where this home has none, so that words are counted."""
    from tokenizers import Tokenizer

    record = newest(store, "base")
    file = store.path(record) / "tokenizer.json" if record else None
    if record is None or file is None or not file.exists():
        return None, "words"
    return Tokenizer.from_file(str(file)), f"tokens of base {record.digest[:12]}"
