"""The filters of Coding RL that need no policy, in the rule's order: schema, duplicates, leakage (CRL-D3..D5, D8).

Solvability and the drop of what always passes come after them, as screens with a policy (CRL-D6, CRL-D7).
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from rufus_core.data.code_leakage import LeakageReference
from rufus_core.data.code_records import CodeRecord, RecordFault
from rufus_core.types import Json

Filter = Literal["schema", "duplicate", "leakage"]
ATCODER_WINDOW = datetime.date(2023, 5, 1)  # of LiveCodeBench release_v6, whose problems date from 2023-05 to 2025-04


@dataclass(frozen=True, slots=True)
class Drop:
    """A row that a filter dropped, why, and on what evidence."""

    row: str
    filter: Filter
    reason: str
    evidence: str


@dataclass(slots=True)
class FilterReport:
    num_rows: int = 0
    num_kept: int = 0
    dropped: list[Drop] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Rows that came in, that each filter dropped for each reason, and that stayed."""
        reasons = Counter(f"{drop.filter}: {drop.reason}" for drop in self.dropped)
        return {"rows": self.num_rows, **dict(sorted(reasons.items())), "kept": self.num_kept}

    def as_dict(self) -> dict[str, Json]:
        drops = [{"row": d.row, "filter": d.filter, "reason": d.reason, "evidence": d.evidence} for d in self.dropped]
        return {"counts": self.counts(), "dropped": drops}


def filter_records(
    rows: Iterable[CodeRecord | RecordFault], reference: LeakageReference | None = None
) -> tuple[list[CodeRecord], FilterReport]:
    """The records that stay, in their order, and what became of the others.

    Each filter sees only what those before it kept. Of duplicates the first stays. Without a reference, leakage is
    judged by platform and date alone.
    """
    report = FilterReport()
    kept: list[CodeRecord] = []
    first_rows: dict[str, str] = {}
    for row in rows:
        report.num_rows += 1
        if isinstance(row, RecordFault):
            report.dropped.append(Drop(row.row, "schema", row.kind, f"{row.field}: {row.what}".lstrip(": ")))
            continue
        key = row.key
        if key in first_rows:
            report.dropped.append(Drop(row.row, "duplicate", "equal statement", first_rows[key]))
            continue
        first_rows[key] = row.row
        if leak := find_leak(row.statement, row.platform, row.date, reference, row.name or row.source):
            report.dropped.append(Drop(row.row, "leakage", *leak))
        else:
            kept.append(row)
    report.num_kept = len(kept)
    return kept, report


def find_leak(
    statement: str,
    platform: str,
    date: datetime.date | None,
    reference: LeakageReference | None,
    name: str = "",
) -> tuple[str, str] | None:
    """Reason and evidence, if a problem may be in the benchmark (CRL-D5); without one, by platform and date alone."""
    if platform == "leetcode":
        return "from LeetCode", name
    if platform == "atcoder" and (date is None or date >= ATCODER_WINDOW):
        return "from AtCoder, not before the window", date.isoformat() if date else "no date"
    if reference and (leak := reference.leak(statement)):
        return ("equal opening" if leak.kind == "opening" else "shared 60-grams"), str(leak)
    return None
