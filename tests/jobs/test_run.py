"""Carrying out a job document: published whole or not at all, and a user's mistake is told."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rufus_core.errors import DataError, LineageError
from rufus_core.jobs import run
from rufus_core.jobs.document import JobDocument
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.run import main, run_job
from rufus_core.lineage import Store
from rufus_core.settings import ExecutionSettings
from tests.jobs.miniature import Runner, small_recipe


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path, small_recipe())


def test_main_publishes_and_ends_well(runner: Runner, tmp_path: Path) -> None:
    document = runner.document("data/rlhf")
    document.save(tmp_path / "job" / "document.json")
    assert main(tmp_path / "job" / "document.json") == 0
    assert not (tmp_path / "job" / "error.json").exists()
    record = runner.store.find("data/rlhf", document.fingerprint)
    assert record is not None
    assert record.kind == "problems"
    assert record.placement == ExecutionSettings(threads=1).model_dump(mode="json")
    assert record.timings is not None
    assert record.timings.seconds >= 0


def test_main_tells_a_mistake_beside_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"messages": 7}\n')
    runner = Runner(tmp_path, small_recipe(f"stages.rlhf.problems.sources=!replace {{mine: {{path: {chats}}}}}"))
    runner.document("data/rlhf").save(tmp_path / "job" / "document.json")
    assert main(tmp_path / "job" / "document.json") == DataError.exit_code == 1
    told = json.loads((tmp_path / "job" / "error.json").read_text())
    assert told["type"] == "DataError"
    assert "no problem of the families chat" in told["what"]
    assert told["where"] == f"{chats}:1"
    assert "ground_truth" in told["hint"]
    assert f"error: {chats}:1" in capsys.readouterr().out
    assert not runner.store.records()
    assert not runner.store.leftover_attempts()


def test_main_without_a_document(tmp_path: Path) -> None:
    assert main(tmp_path / "document.json") == 1
    assert json.loads((tmp_path / "error.json").read_text())["type"] == "LineageError"


def test_a_bug_is_raised_and_publishes_nothing(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: Job) -> Outcome:
        (job.output / "half.txt").write_text("half")
        raise ZeroDivisionError

    monkeypatch.setattr(run, "handler", lambda kind: broken)
    with pytest.raises(ZeroDivisionError):
        run_job(runner.document("data/rlhf"))
    assert not runner.store.records()
    assert not list((runner.store.root / "attempts").iterdir())


def test_a_nan_among_the_results_stays_visible(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverged(job: Job) -> Outcome:
        (job.output / "weights.txt").write_text("x")
        return Outcome({"loss": math.nan, "reward": 0.5})

    monkeypatch.setattr(run, "handler", lambda kind: diverged)
    run_job(runner.document("data/rlhf"))
    (record,) = Store(runner.store.root).records()
    assert math.isnan(record.metrics["loss"])
    assert record.metrics["reward"] == 0.5


def test_an_unknown_kind_is_refused(runner: Runner) -> None:
    with pytest.raises(LineageError, match="'surprises'"):
        run_job(runner.document("data/rlhf", kind="surprises"))


def test_a_document_survives_the_file(runner: Runner, tmp_path: Path) -> None:
    document = runner.document("data/rlhf")
    document.save(tmp_path / "a" / "document.json")
    assert JobDocument.load(tmp_path / "a" / "document.json") == document


def test_where_a_job_runs_is_no_part_of_its_result(tmp_path: Path) -> None:
    one = Runner(tmp_path / "one", small_recipe())
    two = Runner(tmp_path / "two", small_recipe("execution={threads: 2, rollout_workers: 1}"))
    assert one.document("data/if_rl").fingerprint == two.document("data/if_rl").fingerprint
    assert one.run("data/if_rl").digest == two.run("data/if_rl").digest
