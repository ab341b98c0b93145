"""Data steps: disjoint splits, and the user's own files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rufus_core.errors import ConfigError, DataError
from rufus_core.jobs.problem_files import load_examples, load_problems
from rufus_core.lineage import Record
from rufus_core.types import Message, Split
from tests.data.real import real
from tests.jobs.miniature import RL_STAGES, Runner, small_recipe

SPLITS: tuple[Split, ...] = ("train", "validation", "heldout")
WIDE = [
    *(f"stages.{stage}.problems={{num_validation: 30, num_heldout: 60}}" for stage in RL_STAGES),
    "stages.sft.data={num_validation: 30, num_heldout: 60}",
]


@pytest.fixture(scope="module")
def wide(home: Path) -> Runner:
    """The miniature with more problems: enough for an overlap to show."""
    recipe = small_recipe()
    sources = [f"stages.sft.data.sources.{name}.count=60" for name in recipe.stages["sft"].data.sources]
    counts = [
        f"stages.{stage}.problems.sources.{name}.count=60"
        for stage in RL_STAGES
        for name in recipe.stages[stage].problems.sources
    ]
    return Runner(home, small_recipe(*WIDE, *sources, *counts))


def _asked(messages: tuple[Message, ...]) -> str:
    """What the system and the users of a prompt or an example say, in lower case and with single spaces."""
    return " | ".join(" ".join(m.content.lower().split()) for m in messages if m.role in ("system", "user"))


def _problems(wide: Runner, split: Split) -> Iterator[tuple[str, str]]:
    """Id and text of each problem of a split, over all stages; SFT has no file of its training problems."""
    for stage in ("sft", *RL_STAGES):
        if (stage, split) != ("sft", "train"):
            for problem in load_problems(wide.path(f"data/{stage}"), split):
                yield problem.id, _asked(problem.prompt)


@pytest.mark.parametrize("stage", RL_STAGES)
def test_splits_are_disjoint_and_filled(wide: Runner, stage: str) -> None:
    ids = {split: [p.id for p in load_problems(wide.path(f"data/{stage}"), split)] for split in SPLITS}
    sources = wide.steps[f"data/{stage}"].config["sources"]
    assert {split: len(found) for split, found in ids.items()} == {
        "train": 60 * len(sources),
        "validation": 30,
        "heldout": 60,
    }
    every = [key for found in ids.values() for key in found]
    assert len(set(every)) == len(every)


def test_splits_are_disjoint_over_all_stages(wide: Runner) -> None:
    """The mixture is measured on problems that no RL stage trains on, and the other way round."""
    train, validation, heldout = (set(_problems(wide, split)) for split in SPLITS)
    for one, other in ((train, validation), (train, heldout), (validation, heldout)):
        assert not {key for key, _ in one} & {key for key, _ in other}
    assert not {text for _, text in train} & {text for _, text in heldout}


def test_no_held_out_prompt_is_among_the_sft_examples(wide: Runner) -> None:
    trained = {_asked(example.messages) for example in load_examples(wide.path("data/sft") / "examples.jsonl")}
    assert len(trained) > 500
    for split in ("validation", "heldout"):
        found = {text for _, text in _problems(wide, split)}
        assert len(found) > 200
        assert not found & trained


def test_every_source_has_its_part_of_each_split(wide: Runner) -> None:
    for split in ("validation", "heldout"):
        problems = load_problems(wide.path("data/reasoning_rl"), split)
        counts = {source: sum(p.source == source for p in problems) for source in ("arithmetic", "puzzles", "science")}
        assert len(set(counts.values())) == 1, counts


def test_a_report_counts_what_was_kept(wide: Runner) -> None:
    report = json.loads((wide.path("data/sft") / "report.json").read_text())
    examples = load_examples(wide.path("data/sft") / "examples.jsonl")
    assert report["counts"]["examples"] == len(examples) == report["composition"]["samples"]
    assert report["counts"]["heldout"] == 60
    assert wide.run("data/sft").metrics["examples"] == len(examples)


# A user's own files


def _lines(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _chats(path: Path, count: int) -> Path:
    return _lines(
        path,
        [
            {"messages": [{"role": "user", "content": f"hello {i}"}, {"role": "assistant", "content": f"hi {i}"}]}
            for i in range(count)
        ],
    )


def _questions(path: Path, count: int) -> Path:
    return _lines(path, [{"question": f"What is {i} + {i}?", "answer": f"add\n#### {2 * i}"} for i in range(count)])


def _sft(home: Path, source: str) -> tuple[Runner, Record]:
    runner = Runner(home, small_recipe(f"stages.sft.data.sources=!replace {{mine: {source}}}"))
    return runner, runner.run("data/sft")


def _reasoning(home: Path, source: str, stage: str = "reasoning_rl") -> tuple[Runner, Record]:
    runner = Runner(home, small_recipe(f"stages.{stage}.problems.sources=!replace {{mine: {source}}}"))
    return runner, runner.run(f"data/{stage}")


def test_chats_of_a_file_become_examples(home: Path, tmp_path: Path) -> None:
    path = _chats(tmp_path / "chats.jsonl", 5)
    runner, record = _sft(home, f"{{path: {path}, category: general_chat}}")
    examples = load_examples(runner.path("data/sft") / "examples.jsonl")
    assert [e.messages[-1].content for e in examples] == [f"hi {i}" for i in range(5)]
    assert {e.source for e in examples} == {"mine"}
    assert record.external["mine"].rows == 5
    assert record.external["mine"].path == str(path)
    assert record.external["mine"].sha256 == record.config["sources"]["mine"]["path"]


def test_a_count_takes_at_most_so_many_conversations(home: Path, tmp_path: Path) -> None:
    path = _chats(tmp_path / "chats.jsonl", 5)
    for count, taken in ((3, 3), (50, 5)):
        runner, record = _sft(home, f"{{path: {path}, count: {count}}}")
        assert len(load_examples(runner.path("data/sft") / "examples.jsonl")) == taken
        assert record.external["mine"].rows == taken


def test_rows_are_counted_for_each_file(home: Path, tmp_path: Path) -> None:
    one, two = _chats(tmp_path / "one.jsonl", 2), _questions(tmp_path / "two.jsonl", 3)
    sources = f"{{one: {{path: {one}}}, two: {{path: {two}}}, sums: {{generator: arithmetic, count: 4}}}}"
    runner = Runner(home, small_recipe(f"stages.sft.data.sources=!replace {sources}"))
    record = runner.run("data/sft")
    assert {name: file.rows for name, file in record.external.items()} == {"one": 2, "two": 3}
    assert record.metrics["rows"] == 5
    # Files hold no problems to set aside, so the generator fills the splits alone.
    assert len(load_problems(runner.path("data/sft"), "heldout")) == 20


def test_questions_of_a_file_become_problems(home: Path, tmp_path: Path) -> None:
    path = _questions(tmp_path / "sums.jsonl", 100)
    runner, record = _reasoning(home, f"{{path: {path}}}")
    splits = {split: load_problems(runner.path("data/reasoning_rl"), split) for split in SPLITS}
    assert {split: len(found) for split, found in splits.items()} == {"train": 80, "validation": 8, "heldout": 12}
    every = [problem for found in splits.values() for problem in found]
    assert len({problem.id for problem in every}) == 100
    assert {problem.ground_truth["answer"] for problem in every} == {str(2 * i) for i in range(100)}
    assert record.external["mine"].rows == 100


def test_a_count_takes_at_most_so_many_problems_before_the_split(home: Path, tmp_path: Path) -> None:
    path = _questions(tmp_path / "sums.jsonl", 40)
    for count, taken in ((20, 20), (500, 40)):
        runner, record = _reasoning(home, f"{{path: {path}, count: {count}}}")
        every = [p for split in SPLITS for p in load_problems(runner.path("data/reasoning_rl"), split)]
        assert {p.ground_truth["answer"] for p in every} == {str(2 * i) for i in range(taken)}
        assert record.external["mine"].rows == taken


def test_real_grade_school_questions(home: Path, tmp_path: Path) -> None:
    lines = real("gsm8k/test.jsonl").read_text().splitlines()[:50]
    path = tmp_path / "gsm8k.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines))
    runner, _ = _reasoning(home, f"{{path: {path}}}")
    train = load_problems(runner.path("data/reasoning_rl"), "train")
    assert 30 < len(train) < 50
    assert all(problem.ground_truth["answer"].lstrip("-").isdigit() for problem in train)
    runner, _ = _sft(home, f"{{path: {path}, category: math}}")
    examples = load_examples(runner.path("data/sft") / "examples.jsonl")
    assert len(examples) == 50
    assert all("\\boxed{" in example.messages[-1].content for example in examples)


@pytest.mark.parametrize("make", [_sft, _reasoning])
def test_a_broken_line_is_named(home: Path, tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "1 + 1?", "answer": "2"}\n{"question": \n')
    with pytest.raises(DataError) as caught:
        make(home, f"{{path: {path}}}")
    assert (caught.value.where or "").startswith(f"{path}:2")
    assert caught.value.hint


def test_a_file_that_changes_during_a_run_is_not_taken_for_what_it_was(home: Path, tmp_path: Path) -> None:
    path = _chats(tmp_path / "chats.jsonl", 5)
    runner = Runner(home, small_recipe(f"stages.sft.data.sources=!replace {{mine: {{path: {path}}}}}"))
    _chats(path, 6)
    with pytest.raises(DataError, match="changed after the run had started"):
        runner.run("data/sft")


def test_a_file_with_too_few_problems_is_refused(home: Path, tmp_path: Path) -> None:
    path = _questions(tmp_path / "two.jsonl", 2)
    with pytest.raises(DataError, match="2 distinct problems") as caught:
        _reasoning(home, f"{{path: {path}}}")
    assert caught.value.where == str(path)


def test_a_stage_that_cant_grade_questions_says_so(home: Path, tmp_path: Path) -> None:
    path = _questions(tmp_path / "sums.jsonl", 10)
    with pytest.raises(ConfigError, match="coding_rl can't grade") as caught:
        _reasoning(home, f"{{path: {path}}}", "coding_rl")
    assert "reasoning_rl" in (caught.value.hint or "")


@pytest.mark.parametrize("generator", ["mcp_worlds", "search_corpus"])
def test_more_than_a_generator_can_make_is_refused(home: Path, generator: str) -> None:
    with pytest.raises(DataError) as caught:
        _reasoning(home, f"{{generator: {generator}, count: 1000000}}")
    assert caught.value.where == "source mine"
    assert "count" in (caught.value.hint or "")


def test_an_empty_mixture_is_refused(home: Path, tmp_path: Path) -> None:
    path = _lines(tmp_path / "empty.jsonl", [{"messages": [{"role": "user", "content": "no reply"}]}])
    with pytest.raises(ConfigError, match="no example is left") as caught:
        _sft(home, f"{{path: {path}}}")
    assert "dropped_no_response 1" in (caught.value.hint or "")
