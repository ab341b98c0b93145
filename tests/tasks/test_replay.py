"""What MLflow can't take is kept on disk and sent later: in order, each entry once, by one process at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rufus_core.lineage.process import ProcessId
from tasks import replay
from tasks.replay import Sender, writing
from tasks.tracking import Tracker
from tests.tasks.tracked import client_of, made_and_tracked, refuse, shown


def break_mlflow(home: Path) -> None:
    (home / "mlflow" / "mlflow.db").mkdir(parents=True)  # no database can be opened here


def mend_mlflow(home: Path) -> None:
    (home / "mlflow" / "mlflow.db").rmdir()


def journals(home: Path) -> list[Path]:
    return sorted((home / "mlflow" / "unsent").iterdir())


def entries(journal: Path) -> list[str]:
    return [json.loads(line)["entry"] for line in journal.read_text().splitlines()[1:]]


def test_an_outage_warns_once_and_keeps_every_entry(tmp_path: Path) -> None:
    break_mlflow(tmp_path)
    warnings: list[str] = []
    tracker = Tracker(tmp_path, "tiny", warnings.append)
    tracker.run_started("run", {})
    tracker.step_started("a", "A", {"x": 1})
    tracker.progressed("a", 1, {"loss": 2.0})
    tracker.step_finished("a", "FINISHED")
    tracker.run_finished("FINISHED", {})
    assert len(warnings) == 1
    assert str(tmp_path / "mlflow" / "unsent") in warnings[0]
    (journal,) = journals(tmp_path)
    assert entries(journal) == ["start_run", "start_run", "log_metrics", "end_run", "end_run"]


def test_the_next_run_sends_what_the_last_one_could_not(tmp_path: Path) -> None:
    undisturbed, home = tmp_path / "undisturbed", tmp_path / "home"
    tracker = Tracker(undisturbed, "tiny", refuse)
    made_and_tracked(undisturbed, tracker)
    tracker.run_finished("FINISHED", {})

    break_mlflow(home)
    warnings: list[str] = []
    tracker = Tracker(home, "tiny", warnings.append)
    made_and_tracked(home, tracker)
    tracker.run_finished("FINISHED", {})
    assert len(warnings) == 1
    mend_mlflow(home)
    later = Tracker(home, "tiny", refuse)
    later.run_started("later", {})
    later.run_finished("FINISHED", {})
    assert journals(home) == []
    assert without_keys(shown(client_of(home))) == without_keys(shown(client_of(undisturbed)))


def without_keys(shows: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    return {name: {k: v for k, v in each.items() if k != "key"} for name, each in shows.items()}


def test_the_same_run_sends_them_when_mlflow_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "RETRY_SECONDS", 0.01)
    break_mlflow(tmp_path)
    out = threading.Event()
    tracker = Tracker(tmp_path, "tiny", lambda _: out.set())
    tracker.run_started("run", {})
    assert out.wait(60)
    mend_mlflow(tmp_path)
    tracker.step_started("a", "A", {})
    tracker.step_finished("a", "FINISHED")
    tracker.run_finished("FINISHED", {})
    assert journals(tmp_path) == []
    assert {run.info.run_name for run in client_of(tmp_path).search_runs(["1"])} == {"A", "run"}


def test_a_replay_that_was_killed_sends_each_entry_once(tmp_path: Path) -> None:
    """Killed at every entry, one after another: the journal is then sent from its start."""
    break_mlflow(tmp_path)
    tracker = Tracker(tmp_path, "tiny", lambda _: None)
    records = made_and_tracked(tmp_path, tracker)
    tracker.aliased("math", records["stages/math/checkpoint"], "tiny")
    tracker.run_finished("FINISHED", {})
    mend_mlflow(tmp_path)
    (journal,) = journals(tmp_path)
    text = journal.read_text()
    replay_now(tmp_path)
    assert journals(tmp_path) == []
    once = shown(client_of(tmp_path))
    lines = text.splitlines(keepends=True)
    for sent in range(2, len(lines), 4):
        journal.write_text("".join(lines[:sent]))
        replay_now(tmp_path)
    journal.write_text(text + '{"entry": "start_r')  # and its writer was killed too
    replay_now(tmp_path)
    assert shown(client_of(tmp_path)) == once
    assert len(client_of(tmp_path).search_model_versions()) == 1
    assert not (tmp_path / "mlflow" / "refused.jsonl").exists()


def replay_now(home: Path) -> None:
    with writing(home / "mlflow"):
        replay.send_leftovers(home / "mlflow", lambda what, why: refuse(f"{what}: {why}"))


def test_the_journal_of_a_living_run_is_left_alone(tmp_path: Path) -> None:
    break_mlflow(tmp_path)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tasks.tracking import Tracker\n"
        "Tracker(Path(sys.argv[1]), 'tiny', lambda _: print('out', flush=True)).run_started('killed', {})\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living:
        assert living.stdout is not None
        assert living.stdout.readline() == "out\n"
        mend_mlflow(tmp_path)
        (journal,) = journals(tmp_path)
        replay_now(tmp_path)
        assert journals(tmp_path) == [journal]
        living.kill()
    later = Tracker(tmp_path, "tiny", refuse)
    later.run_started("later", {})
    later.run_finished("FINISHED", {})
    found = client_of(tmp_path).search_runs(["1"])
    assert {run.info.run_name: run.info.status for run in found} == {"killed": "KILLED", "later": "FINISHED"}
    assert journals(tmp_path) == []


def test_runs_of_a_dead_process_do_not_stay_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ProcessId, "mine", lambda: ProcessId(2**22 + 1, 1.0))
        sender = Tracker(tmp_path, "tiny", refuse)
        sender.run_started("killed", {})
        sender._sender.close()
    later = Tracker(tmp_path, "tiny", refuse)
    later.run_started("next", {})
    later.run_finished("FINISHED", {})
    found = client_of(tmp_path).search_runs(["1"])
    assert {run.info.run_name: run.info.status for run in found} == {"killed": "KILLED", "next": "FINISHED"}


def test_what_mlflow_refuses_is_put_aside_and_holds_nothing_up(tmp_path: Path) -> None:
    warnings: list[str] = []
    sender = Sender(tmp_path, "tiny", warnings.append)
    sender.send("end_run", key="unknown", status="FINISHED", at=1, tags={})
    sender.send("of_another_release", key="a")
    sender.send("start_run", key="a", name="A", at=1, params={}, tags={})
    sender.close()
    refused = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
    assert [line["entry"] for line in refused] == ["end_run", "of_another_release"]
    assert "MLflow has no run with key unknown" in refused[0]["why"]
    assert len(warnings) == 1
    home = tmp_path / "home"
    home.mkdir()
    (home / "mlflow").symlink_to(tmp_path)
    assert [run.info.run_name for run in client_of(home).search_runs(["1"])] == ["A"]


def test_a_home_that_cannot_be_written_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / "mlflow").write_text("a file is in the way")
    warnings: list[str] = []
    tracker = Tracker(tmp_path, "tiny", warnings.append)
    tracker.run_started("run", {})
    tracker.run_finished("FINISHED", {})
    assert len(warnings) == 2
    assert any("can't be kept on disk" in warning for warning in warnings)
