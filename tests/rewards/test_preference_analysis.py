"""Table 13 from any preference set: how rows are read, what is valid, and the means of what a reward model says."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rufus_core.data.preference_sets import Candidate, read_candidates
from rufus_core.errors import DataError
from rufus_core.rewards.preference_analysis import HEADINGS, Invalid, analyse, invalid
from rufus_core.types import Message
from tests.data.real import real

GOOD, BAD = "Thanks, the ship sails.", "Shut up, you silly ship."


class ByText:
    """Scores by a table of responses; by length where it has none."""

    identity = "by-text"

    def __init__(self, table: Mapping[str, float] | None = None) -> None:
        self.table = table

    def scores(self, responses: Sequence[tuple[Sequence[Message], str]]) -> list[float]:
        return [float(len(text)) if self.table is None else self.table[text] for _, text in responses]


def words(text: str) -> int:
    return len(text.split())


def candidate(chosen: str | None = GOOD, rejected: str | None = BAD, **more: Any) -> Candidate:
    return Candidate(prompt=(Message(role="user", content="Hi"),), chosen=chosen, rejected=rejected, **more)


def read(tmp_path: Path, *rows: Any) -> list[Candidate]:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_candidates(path))


def test_hh_rlhf_transcripts(tmp_path: Path) -> None:
    start = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: A line\n\nand more\n\nAssistant:"
    [same, cut, other] = read(
        tmp_path,
        {"chosen": f"{start} yes", "rejected": f"{start} no"},
        {"chosen": "\n\nHuman: Hi", "rejected": f"{start} no"},
        {"chosen": "\n\nHuman: Hi\n\nAssistant: a", "rejected": "\n\nHuman: Ho\n\nAssistant: b"},
    )
    assert [(m.role, m.content) for m in same.prompt] == [
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "A line\n\nand more"),
    ]
    assert (same.chosen, same.rejected) == ("yes", "no")
    assert cut.chosen is None
    assert other.rejected is None  # an answer to something else


def test_helpsteer3_and_arena(tmp_path: Path) -> None:
    context = [{"role": "user", "content": "Hi"}]

    def helpsteer(preference: int) -> dict[str, Any]:
        return {"context": context, "response1": "one", "response2": "two", "overall_preference": preference}

    def arena(winner: str) -> dict[str, Any]:
        parts = [{"type": "text", "text": "Hi"}, {"type": "image", "image": {}}]
        turns = [[{"role": "user", "content": parts}, {"role": "assistant", "content": text}] for text in "ab"]
        return {"conversation_a": turns[0], "conversation_b": turns[1], "winner": winner}

    rows = [helpsteer(-3), helpsteer(2), helpsteer(0), arena("model_a"), arena("model_b"), arena("both_bad")]
    found = [(c.chosen, c.rejected, c.tie) for c in read(tmp_path, *rows)]
    assert found == [
        ("one", "two", False),
        ("two", "one", False),
        ("one", "two", True),
        ("a", "b", False),
        ("b", "a", False),
        ("a", "b", True),
    ]
    assert all(c.prompt == (Message(role="user", content="Hi"),) for c in read(tmp_path, *rows))


@pytest.mark.parametrize("row", [{}, {"chosen": "x"}, {"chosen": 1, "rejected": 2}, {"prompt": "x", "answer": "y"}])
def test_a_row_of_another_kind_is_refused_with_its_line(tmp_path: Path, row: Any) -> None:
    with pytest.raises(DataError, match=r"set\.jsonl:1"):
        read(tmp_path, row)


def test_what_is_invalid_has_one_reason_RM_D1() -> None:
    assert invalid(candidate()) is None
    assert invalid(candidate(chosen=None)) is Invalid.MISSING
    assert invalid(candidate().model_copy(update={"prompt": ()})) is Invalid.MISSING
    assert invalid(candidate(rejected=" ")) is Invalid.EMPTY
    assert invalid(candidate(rejected=GOOD)) is Invalid.EQUAL
    assert invalid(candidate(chosen="Yes.")) is Invalid.DEGENERATE
    assert invalid(candidate(rejected="no no no no no no no no")) is Invalid.DEGENERATE
    assert invalid(candidate(tie=True)) is Invalid.TIE


def test_means_are_over_the_valid_scored_pairs_T13() -> None:
    other = "A longer reply about the ship."
    table = {GOOD: 2.0, BAD: -1.0, other: 5.0, "The broken ship is gone.": math.nan}
    rows = [
        candidate(),
        candidate(BAD, GOOD),
        candidate(other),
        candidate("The broken ship is gone."),
        candidate(rejected=""),
        candidate(tie=True),
    ]
    report = analyse("ships", rows, ByText(table), words)
    assert (report.num_candidates, report.num_valid, report.num_unscored) == (6, 4, 1)
    assert report.dropped == {"empty": 1, "tie": 1}
    assert report.chosen == pytest.approx(2.0)
    assert report.rejected == pytest.approx(0.0)
    assert report.margin == pytest.approx(2.0)
    assert report.agreement == pytest.approx(2 / 3)
    assert report.row == ("ships", "6", "4", "2.00", "0.00", "5.0", "4.7")
    assert len(report.row) == len(HEADINGS)
    assert analyse("none", [candidate(rejected="")], ByText(), words).row == ("none", "1", "0", "-", "-", "-", "-")


def test_real_preferences_are_accounted_for() -> None:
    path = real("preference/hh_harmless_base_test.jsonl")
    report = analyse("HH-RLHF", read_candidates(path), ByText(), words)
    assert report.num_candidates == 600
    assert report.num_valid + sum(report.dropped.values()) == 600
    assert report.dropped.keys() <= {"empty", "degenerate", "equal"}
    assert report.num_valid > 500
    assert report.num_unscored == 0
