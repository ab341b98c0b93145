"""Data steps: disjoint splits, and the user's own files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rufus_core.errors import ConfigError, DataError
from rufus_core.jobs.filters import Dropped
from rufus_core.jobs.problem_files import load_examples, load_problems
from rufus_core.jobs.problem_rows import read_problem_file
from rufus_core.lineage import Record
from rufus_core.recipe.graph import build_graph
from rufus_core.types import Message, Split
from tests.data.real import real
from tests.jobs.miniature import RL_STAGES, Runner, small_recipe
from tests.sandbox.real import require_isolation

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
    with pytest.raises(DataError, match="no known layout") as caught:
        _reasoning(home, f"{{path: {path}}}", "coding_rl")
    assert caught.value.where == f"{path}:1"
    with pytest.raises(DataError, match="no problem of the families instructions"):
        _reasoning(home, f"{{path: {path}}}", "if_rl")


@pytest.mark.parametrize("stage", RL_STAGES)
def test_every_rl_stage_reads_the_problems_of_its_own_artifacts(runner: Runner, home: Path, stage: str) -> None:
    """What a run wrote is a user's file, too: the same problems come out, with new ids only where a source counts."""
    made = runner.path(f"data/{stage}") / "train.jsonl"
    mine, record = _reasoning(home, f"{{path: {made}}}", stage)
    before = {problem.id: problem for problem in load_problems(made.parent, "train")}
    after = {p.id: p for split in SPLITS for p in load_problems(mine.path(f"data/{stage}"), split)}
    assert {key: p.ground_truth for key, p in after.items()} == {key: p.ground_truth for key, p in before.items()}
    assert {problem.source for problem in after.values()} == {"mine"}
    assert record.external["mine"].rows == 12


def _code(index: int, **changes: object) -> dict[str, object]:
    row = {
        "family": "python_function",
        "prompt": f"Write f(x) = x + {index} in Python.",
        "ground_truth": {"modality": "functional", "tests": [f"assert f(1) == {1 + index}"]},
    }
    return {**row, **changes}


@pytest.mark.parametrize(
    ("row", "where", "said"),
    [
        (_code(1, ground_truth={"modality": "functional", "tests": []}), "", "at least 1 item"),
        (_code(1, family="arithmetic"), " family", "'arithmetic' is no family of this stage"),
        (_code(1, family=None), " family", "the row has no family"),
        (_code(1, prompt=[]), " prompt", "no prompt"),
        (_code(1, prompt=[{"role": "narrator", "content": "x"}]), " prompt[0].role", "Input should be"),
        (_code(1, prompt=[{"role": "system", "content": "x"}]), "", "doesn't end with a user's message"),
        (_code(1, ground_truth=[1]), " ground_truth", "no object"),
        (_code(1, tools=[{}]), " tools", "no schema"),
    ],
)
def test_a_row_that_cant_be_graded_is_named(
    home: Path, tmp_path: Path, row: dict[str, object], where: str, said: str
) -> None:
    path = _lines(tmp_path / "mine.jsonl", [_code(0), row])
    with pytest.raises(DataError, match=said) as caught:
        _reasoning(home, f"{{path: {path}}}", "coding_rl")
    assert caught.value.where == f"{path}:2{where}"


@pytest.mark.parametrize(
    ("stage", "family", "truth", "said"),
    [
        ("coding_agent", "terminal", {}, "ground_truth.workdir: Field required"),
        ("coding_agent", "terminal", {"workdir": "/app", "files": {"a": 1}, "tests": {}}, "ground_truth.files.a: "),
        ("coding_agent", "terminal", {"workdir": "/app", "files": {}, "tests": {}}, "tests/test.sh is missing"),
        ("coding_agent", "terminal", {"workdir": "/etc", "files": {}, "tests": {"test.sh": ""}}, "/etc"),
        ("general_agent", "shop", {}, "ground_truth.world: Field required"),
        ("general_agent", "shop", {"world": "moon", "rows": {}, "checks": []}, "unknown world 'moon'"),
        ("general_agent", "shop", {"world": "shop", "rows": {"items": [["tea"]]}, "checks": []}, "rows don't fit"),
        ("general_agent", "shop", {"world": "shop", "rows": {"items": [["tea", 2**70]]}, "checks": []}, "rows don't"),
        ("search_agent", "person", {}, "ground_truth.answer is no text"),
    ],
)
def test_an_agents_problem_that_no_environment_can_hold_is_named(
    home: Path, tmp_path: Path, stage: str, family: str, truth: dict[str, object], said: str
) -> None:
    path = _lines(tmp_path / "mine.jsonl", [{"family": family, "prompt": "Do it.", "ground_truth": truth}])
    with pytest.raises(DataError, match=said) as caught:
        _reasoning(home, f"{{path: {path}}}", stage)
    assert caught.value.where == f"{path}:1"


def test_a_stage_with_one_family_needs_none_in_the_file(home: Path, tmp_path: Path) -> None:
    path = _lines(tmp_path / "mine.jsonl", [{"prompt": f"Say {i}", "ground_truth": {}} for i in range(9)])
    runner, _ = _reasoning(home, f"{{path: {path}}}", "rlhf")
    assert {p.family for p in load_problems(runner.path("data/rlhf"), "train")} == {"chat"}


def _instructions(rubrics: object) -> dict[str, object]:
    return {"family": "instructions", "prompt": "Say", "ground_truth": {"rubrics": rubrics}}


def test_an_unknown_rubric_in_a_file_is_refused(home: Path, tmp_path: Path) -> None:
    path = _lines(tmp_path / "mine.jsonl", [_instructions([{"kind": "rhymes"}])])
    with pytest.raises(DataError, match="unknown constraint 'rhymes'") as caught:
        _reasoning(home, f"{{path: {path}}}", "if_rl")
    assert caught.value.where == f"{path}:1"


@pytest.mark.parametrize("rubrics", [None, [], "x", [1], [{"kind": ["num_words"]}], [{"kind": "num_words"}], [{}]])
def test_odd_rubrics_are_a_fault_of_the_row_and_no_crash(home: Path, tmp_path: Path, rubrics: object) -> None:
    path = _lines(tmp_path / "mine.jsonl", [_instructions(rubrics)])
    with pytest.raises(DataError) as caught:
        _reasoning(home, f"{{path: {path}}}", "if_rl")
    assert caught.value.where == f"{path}:1"


def test_preference_pairs_become_prompts_whose_texts_only_the_analysis_sees_RM_D2(home: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Tell me of {i}", "chosen": f"good {i}", "rejected": "bad"} for i in range(9)]
    runner, _ = _reasoning(home, f"{{path: {_lines(tmp_path / 'pairs.jsonl', list(rows))}}}", "rlhf")
    problems = load_problems(runner.path("data/rlhf"), "train")
    assert {p.family for p in problems} == {"chat"}
    assert all(set(p.ground_truth) == {"chosen", "rejected"} and len(p.prompt) == 1 for p in problems)


# Judges and checkers that a file brings along

SAME = "import sys\nprint(int(open(sys.argv[3]).read() == open(sys.argv[2]).read()))\n"
SHOUTS = {"kind": "generated", "source": "def f(text):\n    return text.isupper()\n", "function": "f"}


def _judged(number: int, judge: str) -> dict[str, object]:
    tests = [{"input": f"{number}\n", "output": f"{number}\n"}]
    truth = {"modality": "stdin_stdout", "tests": tests, "special_judge": judge}
    return {"family": "python_program", "prompt": f"Echo {number}.", "ground_truth": truth}


def _checked(
    number: int, positive: list[str], source: str = "def check(answer):\n    return answer == '4'\n"
) -> object:
    truth = {"checker": source, "positive": positive, "negative": ["3"]}
    return {"family": "puzzle", "prompt": f"Puzzle {number}?", "ground_truth": truth}


def _benchmarked(number: int, instruction: str, **arguments: object) -> dict[str, object]:
    truth = {"instruction_id_list": [instruction], "kwargs": [arguments]}
    return {"family": "ifeval", "prompt": f"Write {number}.", "ground_truth": truth}


NO_COMMA = "punctuation:no_comma"
UNGRADABLE = {
    "coding_rl": (
        lambda number: _judged(number, SAME),
        [
            (_judged(90, "print(1)"), "the special judge accepts empty outputs"),
            (_judged(91, "print(0)"), "test 0: the special judge rejected on the reference output"),
            (_judged(92, "1 / 0"), "test 0: the special judge failed on the reference output"),
        ],
    ),
    "reasoning_rl": (
        lambda number: _checked(number, ["4"]),
        [
            (_checked(90, ["4", "5"]), "the generated checker 'check' is refused: positive '5'"),
            (
                _checked(91, ["4"], "def check(answer):\n    return True\n"),
                "is refused: negative '3'",
            ),
            (_checked(92, []), "a puzzle's checker needs `positive` and `negative` examples"),
            (_checked(93, ["4"], "import os\ndef check(answer):\n    return bool(os)\n"), "refused: imports os"),
            ({"family": "puzzle", "prompt": "?", "ground_truth": {"dataset": "boxnet"}}, "needs a dataset"),
            (
                {
                    "family": "puzzle",
                    "prompt": "Reverse.",
                    "ground_truth": {"dataset": "n_queens", "config": {}, "entry": {"answer": "x", "metadata": {}}},
                },
                "its own answer doesn't pass",
            ),
        ],
    ),
    "if_rl": (
        lambda number: _instructions([{**SHOUTS, "positive": ["A"], "negative": [f"a{number}"]}]),
        [
            (_instructions([SHOUTS | {"positive": ["a"], "negative": ["b"]}]), "'f' is refused: positive 'a'"),
            (_instructions([SHOUTS | {"source": "import os"}]), "'f' is refused: no_function"),
            (_instructions([SHOUTS | {"function": None}]), "needs the text `function`"),
            (_instructions([{"kind": "judge"}]), "needs the text `question`"),
            (_benchmarked(90, "no_such:thing"), "unknown instruction 'no_such:thing'"),
            (
                _benchmarked(91, NO_COMMA) | {"ground_truth": {"instruction_id_list": [NO_COMMA], "kwargs": []}},
                "0 sets",
            ),
            (_benchmarked(92, "keywords:frequency", frequency="many"), "'keywords:frequency' can't be used"),
        ],
    ),
}


@pytest.mark.parametrize("stage", UNGRADABLE)
def test_what_does_not_know_its_own_references_is_dropped_with_its_reason(
    home: Path, tmp_path: Path, stage: str
) -> None:
    """RRL-R1, CRL-R3, IF-D2: before a policy meets it."""
    require_isolation()
    pytest.importorskip("lm_eval", reason="the extra `benchmarks` is not installed")
    sound, faulty = UNGRADABLE[stage]
    rows = [*(sound(number) for number in range(5)), *(row for row, _ in faulty)]
    runner, _ = _filtered(home, _lines(tmp_path / "mine.jsonl", rows), "{schema: {}}", stage)
    dropped = _dropped(runner, stage)
    assert [(each.id, each.filter) for each in dropped] == [(f"line {6 + i}", "schema") for i in range(len(faulty))]
    for each, (_, reason) in zip(dropped, faulty, strict=True):
        assert reason in each.reason
    assert sum(len(load_problems(runner.path(f"data/{stage}"), split)) for split in SPLITS) == 5


def test_without_the_filter_such_a_row_is_an_error_that_names_its_line(home: Path, tmp_path: Path) -> None:
    require_isolation()
    path = _lines(tmp_path / "mine.jsonl", [_judged(1, SAME), _judged(2, "print(1)")])
    with pytest.raises(DataError, match="accepts empty outputs") as caught:
        _reasoning(home, f"{{path: {path}}}", "coding_rl")
    assert caught.value.where == f"{path}:2"


def test_rows_as_ifeval_and_ifbench_publish_them_are_problems_of_if_rl(tmp_path: Path) -> None:
    ifeval = list(read_problem_file(real("ifeval/input_data.jsonl"), "ifeval", ["instructions", "ifeval", "ifbench"]))
    ifbench = list(read_problem_file(real("ifbench/IFBench_test.jsonl"), "ifbench", ["ifeval", "ifbench"]))
    assert ({p.family for p in ifeval}, {p.family for p in ifbench}) == ({"ifeval"}, {"ifbench"})
    assert (len(ifeval), len(ifbench)) == (541, 300)
    assert all(set(p.ground_truth) == {"instruction_id_list", "kwargs"} for p in (*ifeval, *ifbench))
    with pytest.raises(DataError, match="'ifeval' is no family of this stage"):
        list(read_problem_file(real("ifeval/input_data.jsonl"), "ifeval", ["python_function"]))


def test_prompts_without_a_pair_are_enough_for_rlhf_RM_D2(tmp_path: Path) -> None:
    questions = list(read_problem_file(real("arena_hard/question.jsonl"), "arena_hard", ["chat"]))
    assert len(questions) == 500
    assert {p.family for p in questions} == {"chat"}
    assert all(p.ground_truth == {} and p.prompt[0].role == "user" for p in questions)
    labelled = _lines(tmp_path / "labelled.jsonl", [{"prompt": "Two and two?", "answer": "4"}])
    with pytest.raises(DataError, match="no problem of the families chat"):
        list(read_problem_file(labelled, "mine", ["chat"]))


# Filters


def _filtered(home: Path, path: Path, filters: str, stage: str = "reasoning_rl") -> tuple[Runner, Record]:
    changes = [f"stages.{stage}.problems.sources=!replace {{mine: {{path: {path}}}}}"]
    runner = Runner(home, small_recipe(*changes, f"stages.{stage}.problems.filters=!replace {filters}"))
    return runner, runner.run(f"data/{stage}")


def _kept(runner: Runner, stage: str) -> set[str]:
    return {p.prompt[-1].content for split in SPLITS for p in load_problems(runner.path(f"data/{stage}"), split)}


def _dropped(runner: Runner, stage: str) -> list[Dropped]:
    lines = (runner.path(f"data/{stage}") / "dropped.jsonl").read_text().splitlines()
    return [Dropped.model_validate_json(line) for line in lines]


def test_equal_statements_with_other_case_and_spaces_are_dropped_CRL_D4(home: Path, tmp_path: Path) -> None:
    rows = [{"question": text, "answer": str(i)} for i, text in enumerate(["What is A?", "what  IS\ta?", "B?", "C?"])]
    runner, record = _filtered(home, _lines(tmp_path / "mine.jsonl", list(rows)), "{deduplication: {}}")
    assert _kept(runner, "reasoning_rl") == {"What is A?", "B?", "C?"}
    (dropped,) = _dropped(runner, "reasoning_rl")
    assert (dropped.filter, dropped.source) == ("deduplication", "mine")
    report = json.loads((runner.path("data/reasoning_rl") / "report.json").read_text())
    assert report["filters"] == {"deduplication": {"mine": 1}}
    assert record.metrics["rows"] == 4


def test_records_without_tests_are_dropped_and_counted_where_the_recipe_says_so_CRL_D3(
    home: Path, tmp_path: Path
) -> None:
    bad = _code(9, ground_truth={"modality": "stdin_stdout", "tests": []})
    rows = [*(_code(i) for i in range(4)), bad, _code(3, prompt="write F(X) = x + 3 in python.")]
    path = _lines(tmp_path / "mine.jsonl", list(rows))
    runner, _ = _filtered(home, path, "{schema: {}, deduplication: {}}", "coding_rl")
    dropped = _dropped(runner, "coding_rl")
    assert [each.filter for each in dropped] == ["schema", "deduplication"]
    assert (dropped[0].id, dropped[0].source) == ("line 5", "mine")
    assert "at least 1 item" in dropped[0].reason
    assert len(_kept(runner, "coding_rl")) == 4


def test_where_the_filters_leave_too_little_the_first_reason_is_told(home: Path, tmp_path: Path) -> None:
    path = _lines(tmp_path / "mine.jsonl", [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(4)])
    with pytest.raises(DataError, match="the filters dropped 4, the first one by schema: no known layout"):
        _filtered(home, path, "{schema: {}}", "coding_rl")


def test_public_coding_rows_are_read_and_the_faulty_ones_dropped(home: Path, tmp_path: Path) -> None:
    lines = real("mbpp/mbpp.jsonl").read_text().splitlines()[:12]
    broken = json.dumps({**json.loads(lines[0]), "test_list": []})
    path = tmp_path / "mbpp.jsonl"
    path.write_text("\n".join([*lines, broken]) + "\n")
    runner, record = _filtered(home, path, "{schema: {}, deduplication: {}}", "coding_rl")
    assert len(_kept(runner, "coding_rl")) == 12
    assert [each.id for each in _dropped(runner, "coding_rl")] == ["line 13"]
    assert record.external["mine"].rows == 13


def test_coding_problems_that_a_benchmark_holds_are_dropped_CRL_D5(home: Path, tmp_path: Path) -> None:
    leaked = "Given an array of distinct integers and a target, " + " ".join(f"rule {i} holds" for i in range(20))
    bench = _lines(tmp_path / "lcb.jsonl", [{"question_id": "q1", "question_content": leaked}])
    rows = [*(_code(i) for i in range(5)), _code(7, prompt=f"Please solve this.\n{leaked}\nThank you.")]
    rows.append(_code(8, ground_truth={"modality": "functional", "tests": ["assert f"], "platform": "leetcode"}))
    options = f"benchmarks: {{livecodebench_v6: {bench}}}, benchmark: livecodebench_v6, prefix_chars: 400"
    runner, _ = _filtered(
        home, _lines(tmp_path / "mine.jsonl", list(rows)), f"{{leakage: {{options: {{{options}}}}}}}", "coding_rl"
    )
    assert len(_kept(runner, "coding_rl")) == 5
    assert sorted(each.reason.partition(":")[0] for each in _dropped(runner, "coding_rl")) == [
        "from LeetCode",
        "shared 60-grams",
    ]


def test_real_preference_prompts_and_the_validity_filter_RM_D1(home: Path, tmp_path: Path) -> None:
    lines = real("preference/hh_harmless_base_test.jsonl").read_text().splitlines()[:40]
    same = {**json.loads(lines[0]), "rejected": json.loads(lines[0])["chosen"]}
    path = tmp_path / "hh.jsonl"
    path.write_text("\n".join([*lines, json.dumps(same)]) + "\n")
    runner, _ = _filtered(home, path, "{validity: {options: {min_tokens: 5, allow_equal_responses: false}}}", "rlhf")
    dropped = _dropped(runner, "rlhf")
    assert "equal" in {each.reason for each in dropped}
    problems = [p for split in SPLITS for p in load_problems(runner.path("data/rlhf"), split)]
    assert len(problems) + len(dropped) == 41
    assert all(problem.prompt[-1].role == "user" for problem in problems)


def test_an_option_that_is_fixed_here_is_refused_where_it_says_otherwise(home: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Tell {i}", "chosen": "x", "rejected": "y"} for i in range(4)]
    path = _lines(tmp_path / "pairs.jsonl", list(rows))
    with pytest.raises(ConfigError, match="min_tokens is 9"):
        _filtered(home, path, "{validity: {options: {min_tokens: 9}}}", "rlhf")


def test_the_order_of_filters_is_kept_and_part_of_the_identity_CRL_D8() -> None:
    steps = []
    validity, phrases = "validity: {}", "policy_issues: {options: {phrases: [x]}}"
    for order in (f"{{schema: {{}}, {validity}, {phrases}}}", f"{{schema: {{}}, {phrases}, {validity}}}"):
        graph = build_graph(small_recipe(f"stages.coding_rl.problems.filters=!replace {order}"))
        steps.append(next(step for step in graph if step.name == "data/coding_rl"))
    assert [step.config["filter_order"] for step in steps] == [
        ["schema", "validity", "policy_issues"],
        ["schema", "policy_issues", "validity"],
    ]


def test_starter_code_and_names_tell_no_two_statements_apart_CRL_D4_CRL_D5(home: Path, tmp_path: Path) -> None:
    def row(statement: str, **fields: object) -> dict[str, object]:
        return {"statement": statement, "modality": "functional", "tests": ["assert f(1) == 2"], **fields}

    short = "Add one to it."  # too short for 60-grams: only its opening can tell that the benchmark holds it
    bench = _lines(tmp_path / "lcb.jsonl", [{"question_id": "q1", "question_content": short}])
    rows = [
        *(row(f"Add {i} to the number.", entry_point="f") for i in range(3)),
        row("Add 2 to the  NUMBER.", starter_code="def f(x):\n    pass\n", entry_point="f"),
        row("Add 2 to the number.", entry_point="other"),
        row(short, starter_code="class Solution:\n    pass\n", entry_point="add"),
    ]
    filters = f"{{deduplication: {{}}, leakage: {{options: {{benchmarks: {{lcb: {bench}}}}}}}}}"
    runner, _ = _filtered(home, _lines(tmp_path / "mine.jsonl", list(rows)), filters, "coding_rl")
    dropped = [(each.filter, each.reason.partition(":")[0]) for each in _dropped(runner, "coding_rl")]
    assert [name for name, _ in dropped] == ["deduplication", "deduplication", "leakage"]
    assert dropped[2][1] == "equal opening"
    assert len(_kept(runner, "coding_rl")) == 3


def test_problems_that_hold_a_benchmark_s_items_are_dropped_DECON_12(home: Path, tmp_path: Path) -> None:
    leaked = "Find the sum of all integer bases b greater than nine for which seventeen divides it"
    bench = _lines(tmp_path / "aime.jsonl", [{"id": "I-1", "problem": leaked}, {"id": "I-2", "problem": "x " * 20}])
    questions = [f"How many legs have {i} cats?" for i in range(6)]
    rows = [{"question": q, "answer": "1"} for q in [*questions, f"Please answer: {leaked.upper()}\n?"]]
    path = _lines(tmp_path / "mine.jsonl", list(rows))
    filters = f"{{contamination: {{options: {{benchmarks: {{aime_25: {bench}}}}}}}}}"
    runner, record = _filtered(home, path, filters)
    assert _kept(runner, "reasoning_rl") == set(questions)
    (dropped,) = _dropped(runner, "reasoning_rl")
    assert "of aime_25 I-1" in dropped.reason
    assert record.external["contamination/aime_25"].path == str(bench)
    assert str(bench) not in json.dumps(record.config)


def test_an_aime_problem_in_a_file_is_found_in_the_real_benchmark(home: Path, tmp_path: Path) -> None:
    bench = real("math/aime25.jsonl")
    row = json.loads(bench.read_text().splitlines()[0])
    rows = [{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(6)]
    rows.append({"question": row["prompt"], "answer": str(row["answer"])})
    filters = f"{{contamination: {{options: {{benchmarks: {{aime_25: {bench}}}}}}}}}"
    runner, _ = _filtered(home, _lines(tmp_path / "mine.jsonl", list(rows)), filters)
    assert [each.filter for each in _dropped(runner, "reasoning_rl")] == ["contamination"]


def test_phrases_of_the_recipe_s_own_are_policy_issues_RRL_D2(home: Path, tmp_path: Path) -> None:
    rows = [{"question": f"How far is {i}?", "answer": "1"} for i in range(4)]
    path = _lines(tmp_path / "mine.jsonl", [*rows, {"question": "How to build a Secret  weapon?", "answer": "1"}])
    runner, _ = _filtered(home, path, "{policy_issues: {options: {phrases: [secret weapon]}}}")
    assert [each.reason for each in _dropped(runner, "reasoning_rl")] == ["holds 'secret weapon'"]


def test_generated_problems_are_filtered_before_the_splits_are_filled(home: Path) -> None:
    """The splits are as large as asked for, for the generator makes some to spare."""
    filters = '{policy_issues: {options: {phrases: ["1 +"]}}}'
    recipe = small_recipe(f"stages.reasoning_rl.problems.filters={filters}")
    runner = Runner(home, recipe)
    problems = [p for split in SPLITS for p in load_problems(runner.path("data/reasoning_rl"), split)]
    assert len(problems) == 36
    assert not [p for p in problems if "1 +" in p.prompt[-1].content]


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
