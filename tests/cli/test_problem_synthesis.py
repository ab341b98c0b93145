"""`rufus problems synthesize`: by scripts alone, with models behind a real server, killed, refused and failing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rufus_core.cli.main import app
from rufus_core.data.synthesis.dialogue import Dialogue
from rufus_core.data.synthesis.journal import Journal
from rufus_core.errors import ConfigError, DataError, InfrastructureError, LineageError, RufusError
from rufus_core.jobs.problem_rows import read_problem_file
from rufus_core.rewards.generated import GENERATED
from rufus_core.types import Message, Problem
from tests.cli.synthesis_models import GOOD, Models, is_easy, task_of
from tests.cli.test_problems import call, made, write  # noqa: F401 - a fixture
from tests.jobs.miniature import small_overrides
from tests.rewards.endpoint import Endpoint, Reply, failed
from tests.sandbox.real import require_isolation

SHORT = ("--min-turns", "2", "--max-turns", "2")
TEACHER = ("--teacher", "openai:teacher", "--assistant", "openai:words-3", "--assistant", "openai:words-5")


def synthesize(output: Path, *words: str, exits: int = 0) -> dict[str, Any]:
    """The report. What the command raises is raised."""
    command = ["problems", "synthesize", str(output), *words, "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    if isinstance(result.exception, RufusError):
        raise result.exception
    assert result.exit_code == exits, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["asked"] == report["kept"] + sum(report["dropped"].values()) + sum(report["failed"].values())
    return report


def problems_of(file: Path) -> list[Problem]:
    return list(read_problem_file(file, "mine", ["instructions"]))


@pytest.fixture
def endpoint_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Endpoint], Endpoint]:
    def named(endpoint: Endpoint) -> Endpoint:
        monkeypatch.setenv("RUFUS_TEACHER_URL", endpoint.url)
        return endpoint

    monkeypatch.setenv("RUFUS_TEACHER_API_KEY", "teacher-key")
    return named


# Scripts alone


def test_scripts_make_a_file_that_a_recipe_reads_IF_D1(tmp_path: Path, made: list[str]) -> None:  # noqa: F811
    file = tmp_path / "made.jsonl"
    report = synthesize(file, "--single", "10", "--multi", "10")
    assert (report["asked"], report["failed"]) == (20, {})
    problems = problems_of(file)
    assert len(problems) == report["kept"] >= 18
    turns = Counter(sum(message.role == "user" for message in each.prompt) for each in problems)
    assert turns[1] == report["kept_by_source"]["single_turn"]
    assert set(turns) <= {1, *range(4, 9)}
    assert all(2 <= len(each.ground_truth["rubrics"]) <= 6 for each in problems)
    mine = f"stages.if_rl.problems.sources=!replace {{mine: {{path: {file}}}}}"
    shown = call(tmp_path / "home", "build", "if_rl", sets=[*small_overrides(), mine])
    assert made == ["data/if_rl"]
    assert "mine" in shown


def test_equal_commands_write_equal_files_and_another_seed_another(tmp_path: Path) -> None:
    first, again, other = (tmp_path / f"{name}.jsonl" for name in ("first", "again", "other"))
    words = ("--single", "4", "--multi", "4", *SHORT)
    assert synthesize(first, *words) == synthesize(again, *words) | {"file": str(first)}
    synthesize(other, *words, "--seed", "1")
    assert first.read_bytes() == again.read_bytes()
    assert not {each.id for each in problems_of(first)} & {each.id for each in problems_of(other)}


def test_a_user_s_queries_and_personas_are_what_is_asked_about_IF_D2(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"query": "How do I mend a bicycle?", "persona": "A courier in a hurry."},
        {"question": "Why do cats purr?"},
        {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "Tell me of Iceland."}]},
    ]
    queries = write(tmp_path / "queries.jsonl", rows)
    file = tmp_path / "made.jsonl"
    synthesize(file, "--queries", str(queries), "--single", "3", "--multi", "3", *SHORT)
    for index, query in enumerate(("How do I mend a bicycle?", "Why do cats purr?", "Tell me of Iceland.")):
        opening = [next(m.content for m in each.prompt if m.role == "user") for each in problems_of(file)]
        assert sum(query in text for text in opening) == 2, index


def test_without_json_it_says_what_was_made(tmp_path: Path) -> None:
    command = ["problems", "synthesize", str(tmp_path / "made.jsonl"), "--single", "3", "--multi", "2"]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "100"}, catch_exceptions=False)
    assert result.exit_code == 0
    assert "5 of 5 asked for (single_turn 3, multi_turn 2)" in " ".join(result.stdout.split())
    assert "quality: 4 attempts of builtin:scripted-solver; difficulty: not asked" in result.stdout
    assert "rufus problems inspect" in result.stdout


def test_the_generator_is_a_source_of_the_stage(tmp_path: Path, made: list[str]) -> None:  # noqa: F811
    source = "stages.if_rl.problems.sources=!replace {dialogues: {generator: dialogues, count: 8}}"
    shown = call(tmp_path / "home", "build", "if_rl", sets=[*small_overrides(), source])
    assert made == ["data/if_rl"]
    assert "conversations of several turns" in shown


# Models behind an endpoint


def test_teacher_assistants_and_policy_make_filter_and_are_counted_IF_D3_IF_D4(
    tmp_path: Path, endpoint_of: Callable[[Endpoint], Endpoint]
) -> None:
    file = tmp_path / "made.jsonl"
    with endpoint_of(Endpoint(Models(tmp_path / "made.synthesis"))) as endpoint:
        words = ("--single", "6", "--multi", "6", "--checkers", "0", *SHORT, *TEACHER, "--policy", "openai:policy")
        report = synthesize(file, *words)
        num_requests = len(endpoint.requests)
        assert synthesize(file, *words) == report, "nothing is asked for again"
        assert len(endpoint.requests) == num_requests
    assert {authorization for _, authorization, _ in endpoint.requests} == {"Bearer teacher-key"}
    kept = problems_of(file)
    assert report["dropped"] == {"too_easy": 12 - len(kept)}
    assert 0 < len(kept) < 12
    assert not any(is_easy(list(each.prompt)) for each in kept)
    asked = Counter(body["model"] for _, _, body in endpoint.requests)
    assert (asked["words-3"], asked["words-5"]) == (3, 3), "assistants rotate (IF-D4)"
    assert asked["policy"] == 12 * 8
    used = report["usage"]
    assert {part: each["requests"] for part, each in used.items()} == {
        "teacher": asked["teacher"],
        "assistants": 6,
        "policy": 96,
    }
    assert used["policy"]["prompt_tokens"] == 7 * 96
    assert report["models"]["difficulty"] == "8 attempts of policy@t1"
    dropped = [json.loads(line) for line in (tmp_path / "made.synthesis/dropped.jsonl").read_text().splitlines()]
    assert {(row["reason"], row["detail"]) for row in dropped} == {("too_easy", "8 of 8 pass")}


def test_what_no_attempt_of_the_teacher_s_passes_goes_IF_D6(
    tmp_path: Path, endpoint_of: Callable[[Endpoint], Endpoint]
) -> None:
    models = Models(tmp_path / "made.synthesis")

    def hopeless(body: dict[str, Any]) -> Reply:
        attempts = body["model"] == "teacher" and task_of(body["messages"][-1]["content"]) is None
        messages = [Message.model_validate(message) for message in body["messages"]]
        return models(body | {"model": "policy"} if attempts and not is_easy(messages) else body)

    file = tmp_path / "made.jsonl"
    with endpoint_of(Endpoint(hopeless)):
        report = synthesize(file, "--single", "0", "--multi", "8", *SHORT, *TEACHER)
    kept = problems_of(file)
    assert all(is_easy(list(each.prompt)) for each in kept)
    assert report["dropped"] == {"teacher_never_passed": 8 - len(kept)}


def test_a_teacher_s_checkers_run_in_the_sandbox_and_bad_ones_are_refused_IF_D2(
    tmp_path: Path, endpoint_of: Callable[[Endpoint], Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    require_isolation()
    monkeypatch.setenv("RUFUS_TEACHER_PRICES", "1000000,2000000")
    file = tmp_path / "made.jsonl"
    with endpoint_of(Endpoint(Models(tmp_path / "made.synthesis"))) as endpoint:
        words = ("--single", "3", "--multi", "0", "--checkers", "2", "--teacher", "openai:teacher")
        report = synthesize(file, *words)
    assert report["checkers"] == {"admitted": 3, "refused": {"negative": 9}}
    used = report["usage"]["teacher"]
    assert used["cost"] == 7 * len(endpoint.requests) + 2 * 3 * len(endpoint.requests)
    for problem in problems_of(file):
        (rubric,) = [each for each in problem.ground_truth["rubrics"] if each["kind"] == GENERATED]
        assert "zeppelin" in rubric["source"]
        assert GOOD in problem.prompt[0].content
        assert "beautiful" not in problem.prompt[0].content, "what no program checks isn't asked for"


def test_a_judge_at_an_endpoint_of_its_own_gets_no_other_s_key(
    tmp_path: Path, endpoint_of: Callable[[Endpoint], Endpoint]
) -> None:
    models = Models(tmp_path / "made.synthesis")

    def with_question(body: dict[str, Any]) -> Reply:
        task = task_of(body["messages"][-1]["content"])
        reply = models(body)
        if task is not None and task["task"] == "rubrics":
            assert "judge" in task["kinds"]
            message = reply.payload["choices"][0]["message"]
            question = {"kind": "judge", "question": "Is it kind?", "necessary": True}
            message["content"] = json.dumps({"rubrics": [*json.loads(message["content"])["rubrics"], question]})
        return reply

    file = tmp_path / "made.jsonl"
    with endpoint_of(Endpoint(with_question)), Endpoint(Models(tmp_path)) as judging:
        words = ("--single", "0", "--multi", "2", *SHORT, *TEACHER, "--judge", f"openai:judge@{judging.url}")
        report = synthesize(file, *words)
    assert report["kept"] == 2
    assert len(judging.requests) == report["usage"]["judge"]["answered"] == 2 * 4
    assert {(authorization, body["temperature"]) for _, authorization, body in judging.requests} == {(None, 0.0)}


def test_killed_again_and_again_it_goes_on_and_ends_with_the_same_file(
    tmp_path: Path, endpoint_of: Callable[[Endpoint], Endpoint]
) -> None:
    words = ("--single", "3", "--multi", "4", *SHORT, *TEACHER, "--checkers", "0", "--policy", "openai:policy")
    whole, file = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    with endpoint_of(Endpoint(Models(tmp_path / "whole.synthesis"))):
        undisturbed = synthesize(whole, *words)
    models, left, running = Models(tmp_path / "killed.synthesis"), [0], list[subprocess.Popen[bytes]]()

    def deadly(body: dict[str, Any]) -> Reply:
        left[0] -= 1
        if left[0] == 0:
            os.kill(running[-1].pid, signal.SIGKILL)
        return models(body)

    command = [sys.executable, "-m", "rufus_core.cli.main", "problems", "synthesize", str(file), *words]
    with endpoint_of(Endpoint(deadly)) as endpoint:
        for num_requests in (9, 20, 45):
            finished = seeds(models.journal)
            before = len(endpoint.requests)
            left[0] = num_requests
            running.append(subprocess.Popen([*command, "--workers", "2"], stderr=subprocess.DEVNULL))
            assert running[-1].wait() == -signal.SIGKILL
            assert not file.exists()
            planned = [task_of(body["messages"][-1]["content"]) for _, _, body in endpoint.requests[before:]]
            assert not finished & {task["seed"] for task in planned if task and task["task"] == "plan"}
        report = synthesize(file, *words)
        before = len(endpoint.requests)
        assert synthesize(file, *words)["kept"] == report["kept"]
        assert len(endpoint.requests) == before
    assert file.read_bytes() == whole.read_bytes()
    for name in ("asked", "kept", "dropped", "failed", "unfinished", "models"):
        assert report[name] == undisturbed[name]


def test_ctrl_c_ends_it_in_a_line_and_it_goes_on(tmp_path: Path, endpoint_of: Callable[[Endpoint], Endpoint]) -> None:
    file, running = tmp_path / "made.jsonl", list[subprocess.Popen[str]]()
    models = Models(tmp_path / "made.synthesis")
    words = ("--single", "0", "--multi", "40", *TEACHER)

    def interrupting(body: dict[str, Any]) -> Reply:
        if len(endpoint.requests) == 30:
            running[0].send_signal(signal.SIGINT)
        return models(body)

    command = [sys.executable, "-m", "rufus_core.cli.main", "problems", "synthesize", str(file), *words]
    with endpoint_of(Endpoint(interrupting)) as endpoint:
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        out, err = running[0].communicate()
        assert (running[0].returncode, out, err.splitlines()) == (130, "", ["dialogues: 40", "interrupted"])
        assert len(endpoint.requests) < 40 * 10
    with endpoint_of(Endpoint(models)):
        assert synthesize(file, *words)["kept"] == 40


def seeds(journal: Path) -> set[int]:
    """Of the dialogues that are finished."""
    if not journal.exists():
        return set()
    with Journal(journal, Dialogue) as kept:
        return {dialogue.spec.seed for dialogue in kept.finished.values()}


def test_an_endpoint_that_fails_for_some_costs_those_alone_and_they_are_asked_for_again(
    tmp_path: Path, endpoint_of: Callable[[Endpoint], Endpoint]
) -> None:
    words = ("--single", "0", "--multi", "8", *SHORT, *TEACHER)
    file = tmp_path / "made.jsonl"
    models = Models(tmp_path / "made.synthesis")

    def one_is_down(body: dict[str, Any]) -> Reply:
        return failed(400) if body["model"] == "words-3" else models(body)

    with endpoint_of(Endpoint(one_is_down)):
        report = synthesize(file, *words, exits=1)
    assert report["failed"] == {"no_assistant": 4}
    assert report["unfinished"] == {"no_assistant: words-3 gave no reply: status 400": 4}
    assert len(problems_of(file)) == 4
    assert all(each.prompt[-1].role == "user" for each in problems_of(file)), "no half dialogue"
    with endpoint_of(Endpoint(models)) as endpoint:
        healed = synthesize(file, *words)
    assert (healed["kept"], healed["failed"], healed["unfinished"]) == (8, {}, {})
    plans = [task_of(body["messages"][-1]["content"]) for _, _, body in endpoint.requests]
    assert sum(task is not None and task["task"] == "plan" for task in plans) == 4


def test_attempts_without_a_reply_are_told_and_made_later(
    tmp_path: Path, endpoint_of: Callable[[Endpoint], Endpoint]
) -> None:
    words = ("--single", "0", "--multi", "3", *SHORT, *TEACHER, "--policy", "openai:policy")
    models = Models(tmp_path / "made.synthesis")
    with (
        endpoint_of(Endpoint(lambda body: failed(400) if body["model"] == "policy" else models(body))),
        pytest.raises(DataError, match="no problem is left: unscored 3"),
    ):
        synthesize(tmp_path / "made.jsonl", *words)
    assert not (tmp_path / "made.jsonl").exists()
    with endpoint_of(Endpoint(models)) as endpoint:
        report = synthesize(tmp_path / "made.jsonl", *words)
    assert report["unfinished"] == {}
    assert {body["model"] for _, _, body in endpoint.requests} == {"policy"}


def test_an_endpoint_that_is_down_ends_it_instead_of_being_asked_for_ever(
    tmp_path: Path, endpoint_of: Callable[[Endpoint], Endpoint]
) -> None:
    words = ("--single", "0", "--multi", "500", *TEACHER)
    with (
        endpoint_of(Endpoint(lambda _: failed(400))) as endpoint,
        pytest.raises(InfrastructureError, match="64 items in a row got no reply: teacher gave no reply: status 400"),
    ):
        synthesize(tmp_path / "made.jsonl", *words)
    assert len(endpoint.requests) < 3 * 100


# A user's mistakes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--teacher", "gpt", "--multi", "0"), "'gpt' is no model behind an endpoint"),
        (("--teacher", "openai:gpt", "--multi", "0"), "set RUFUS_TEACHER_URL"),
        (("--teacher", "openai:gpt"), "need an assistant"),
        (("--checkers", "1"), "scripts write no checkers"),
        (("--single", "0", "--multi", "0"), "nothing is asked for"),
        (("--min-turns", "5", "--max-turns", "4"), "--max-turns 4 is below --min-turns 5"),
        (("--assistant", "openai:a@http://localhost:1/v1", "--assistant", "openai:a@http://x/v1"), "that differ"),
    ],
)
def test_what_cant_be_made_is_told_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.delenv("RUFUS_TEACHER_URL", raising=False)
    with pytest.raises(ConfigError) as error:
        synthesize(tmp_path / "made.jsonl", *words)
    assert told in str(error.value)


def test_a_refusing_endpoint_a_bad_file_and_a_second_writer_are_told(
    tmp_path: Path, endpoint_of: Callable[[Endpoint], Endpoint]
) -> None:
    file = tmp_path / "made.jsonl"
    with endpoint_of(Endpoint(lambda _: failed(401))), pytest.raises(ConfigError, match="refuses model 'teacher'"):
        synthesize(file, "--single", "0", "--multi", "2", *TEACHER)
    with pytest.raises(ConfigError, match=r"end it with \.jsonl"):
        synthesize(tmp_path / "made.txt")
    with pytest.raises(ConfigError, match="address"):
        synthesize(file, "--single", "1", "--multi", "0", "--teacher", "openai:m@http://[::1")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ConfigError, match="a folder is where the problems should go"):
        synthesize(tmp_path / "folder.jsonl")
    assert not (tmp_path / "folder.synthesis").exists()
    for nowhere in (Path("/proc/made.jsonl"), tmp_path / f"{'x' * 300}.jsonl"):
        with pytest.raises(LineageError, match="can't make the folder"):
            synthesize(nowhere)
    queries = write(tmp_path / "queries.jsonl", [{"query": "Why?"}, {"text": "no"}])
    with pytest.raises(DataError, match=r"queries\.jsonl:2: the row holds no query"):
        synthesize(file, "--queries", str(queries))
    with (
        Journal(tmp_path / "made.synthesis/dialogues.jsonl", Dialogue),
        pytest.raises(DataError, match="another process is writing this"),
    ):
        synthesize(file)


def test_a_name_that_steers_the_terminal_is_shown_as_it_is(
    tmp_path: Path, endpoint_of: Callable[[Endpoint], Endpoint]
) -> None:
    models = Models(tmp_path / "made.synthesis")
    with endpoint_of(Endpoint(lambda body: models(body | {"model": "policy"}))):
        evil = "openai:\x1b[2J[bold]x"
        command = ["problems", "synthesize", str(tmp_path / "made.jsonl"), "--single", "6", "--multi", "0"]
        result = CliRunner().invoke(app, [*command, "--policy", evil], catch_exceptions=False)
    assert "\x1b" not in result.output
    assert "[bold]x" in result.output
