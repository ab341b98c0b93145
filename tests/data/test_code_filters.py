"""The filters of Coding RL, in the rule's order and with evidence (CRL-D3..D5, D8)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.code_filters import filter_records
from rufus_core.data.code_layouts import record_from_row
from rufus_core.data.code_leakage import LeakageReference, gram_hashes, read_reference
from rufus_core.data.code_records import FaultKind, RecordFault
from rufus_core.errors import DataError

# No two runs of 60 characters of these are equal.
HELD = " ".join(f"held{index}" for index in range(100))
OTHER = " ".join(f"other{index}" for index in range(100))
REFERENCE = LeakageReference({"q1": HELD, "q2": "A short item."})


def record(statement, row="f:1", **fields):
    given = {"statement": statement, "modality": "functional", "tests": ["assert f() == 1"]}
    return record_from_row(given | fields, row)


def drops(*rows, reference=REFERENCE):
    kept, report = filter_records(rows, reference)
    assert report.num_rows == len(rows) == len(kept) + len(report.dropped)
    assert len(kept) == report.num_kept
    return [(drop.row, drop.filter, drop.reason) for drop in report.dropped]


def test_each_filter_sees_what_those_before_it_kept_CRL_D8():
    fault = RecordFault(FaultKind.EMPTY, "tests", "no tests", "f:1")
    rows = [fault, record(OTHER, "f:2"), record(HELD, "f:3"), record(HELD.upper(), "f:4"), record(f" {OTHER}\n", "f:5")]
    assert drops(*rows) == [
        ("f:1", "schema", "empty"),
        ("f:3", "leakage", "equal opening"),
        ("f:4", "duplicate", "equal statement"),  # of a row that leaks: a duplicate first of all
        ("f:5", "duplicate", "equal statement"),
    ]
    kept, report = filter_records(rows, REFERENCE)
    assert [each.row for each in kept] == ["f:2"]
    assert report.counts() == {
        "rows": 5,
        "duplicate: equal statement": 2,
        "leakage: equal opening": 1,
        "schema: empty": 1,
        "kept": 1,
    }
    assert [drop.evidence for drop in report.dropped] == [
        "tests: no tests",
        f"q1: equal opening: {HELD[:60]!r}",
        "f:3",
        "f:2",
    ]
    assert json.loads(json.dumps(report.as_dict()))["dropped"][1]["row"] == "f:3"


@pytest.mark.parametrize(("num_shared", "leaks"), [(4, False), (5, True), (6, True)])
def test_five_shared_60_grams_flag_a_problem_CRL_D5(num_shared, leaks):
    start = 100
    text = f"{OTHER} |{HELD[start : start + 59 + num_shared]}|"
    leak = REFERENCE.leak(text)
    assert bool(leak) is leaks
    if leak:
        assert (leak.item, leak.kind, leak.num_shared) == ("q1", "grams", num_shared)
        assert leak.quote == HELD[start : start + 60]


def test_repeated_grams_count_once_and_those_of_several_items_do_not_add_up():
    gram = f"|{HELD[100:160]}|"
    assert REFERENCE.leak(gram * 9) is None
    both = LeakageReference({"a": HELD, "b": OTHER})
    text = f"|{HELD[100:162]}|{OTHER[100:162]}|"  # three of each
    assert both.leak(text) is None
    assert both.leak(f"{text}{HELD[300:362]}|").item == "a"


def test_equal_openings_flag_a_problem_whatever_follows_CRL_D5():
    opening = HELD[:400]
    assert REFERENCE.leak(opening + "0" * 500).kind == "opening"
    assert REFERENCE.leak(f"  {opening.upper()} \n").kind == "opening"
    assert REFERENCE.leak(opening[:-1]).kind == "grams"
    assert REFERENCE.leak("a  SHORT\nitem.").item == "q2"
    assert REFERENCE.leak("A short item. And more.") is None


def test_common_grams_may_be_left_out():
    items = {f"q{index}": f"{index} {HELD} {index}" for index in range(3)}
    text = f"{OTHER} {HELD}"
    assert LeakageReference(items).leak(text)
    assert LeakageReference(items, common_from=4).leak(text)
    assert LeakageReference(items, common_from=3).leak(text) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"platform": "LeetCode"}, "from LeetCode"),
        ({"source": "leetcode.com"}, "from LeetCode"),
        ({"url": "https://leetcode.com/problems/two-sum"}, "from LeetCode"),
        ({"platform": "atcoder", "date": "2023-04-30"}, None),
        ({"platform": "atcoder", "date": "2023-05-01"}, "from AtCoder, not before the window"),
        ({"platform": "atcoder", "date": "2026-01-01"}, "from AtCoder, not before the window"),
        ({"platform": "AtCoder"}, "from AtCoder, not before the window"),
        ({"platform": "codeforces", "date": "2024-05-01"}, None),
        ({}, None),
    ],
)
def test_platforms_and_dates_CRL_D5(fields, reason):
    assert [drop[2] for drop in drops(record(OTHER, **fields), reference=None)] == ([reason] if reason else [])


def test_a_reference_file(tmp_path):
    path = tmp_path / "reference.jsonl"
    rows = [{"question_content": HELD, "question_id": "abc_d"}, {"statement": OTHER}]
    path.write_text("\n".join(map(json.dumps, rows)))
    reference = read_reference(path)
    assert len(reference) == 2
    assert reference.leak(HELD).item == "abc_d"
    assert reference.leak(OTHER).item == "2"
    path.write_text('{"question_id": 3}')
    with pytest.raises(DataError, match=r"reference.jsonl:1: the row has no statement"):
        read_reference(path)


@given(st.text(alphabet="abé\U0001f600", max_size=80), st.integers(1, 65))
def test_runs_hash_alike_iff_they_are_equal(text, length):
    hashes = gram_hashes(text, length).tolist()
    runs = [text[start : start + length] for start in range(len(text) - length + 1)]
    assert len(hashes) == len(runs)
    assert len(set(hashes)) == len(set(runs)) == len(set(zip(hashes, runs, strict=True)))


@given(st.text(alphabet="ab ", max_size=300), st.text(alphabet="ab ", max_size=300))
def test_leaks_are_those_of_sets_of_grams(statement, item):
    """The definition, written out."""

    def grams(text):
        text = " ".join(text.split())
        return {text[start : start + 60] for start in range(len(text) - 59)}

    leak = LeakageReference({"q": item}).leak(statement)
    if " ".join(statement.split()) == " ".join(item.split()):
        assert leak.kind == "opening"
    else:
        shared = len(grams(statement) & grams(item))
        assert (leak.num_shared if leak else 0) == (shared if shared >= 5 else 0)
