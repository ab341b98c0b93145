"""The launcher, with real processes."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from rufus_core.lineage.process import ProcessId
from tasks.children import ExecutedChild
from tasks.jobs import JobCancelled, tail
from tasks.launcher import LocalJob, Spawn
from tasks.spawner import job_environment

ENV = job_environment(threads=1)
FOREVER = "import time\nwhile True: time.sleep(60)"


def python(code: str, *arguments: str) -> Spawn:
    return partial(ExecutedChild, [sys.executable, "-c", code, *arguments], ENV)


def nothing() -> None:
    """To prepare."""


class Cancel(threading.Event):
    """Cancels as soon as `ready` is written."""

    def __init__(self, ready: Path) -> None:
        super().__init__()
        self._ready = ready

    def wait(self, timeout: float | None = None) -> bool:
        if self._ready.exists() and self._ready.read_text():
            self.set()
        return super().wait(timeout)


def wait(
    job: LocalJob, cancelled: threading.Event | None = None, at_once: threading.Event | None = None
) -> tuple[int | None, list[Any]]:
    seen: list[Any] = []
    code = job.wait(job.folder / "progress.jsonl", seen.append, cancelled or threading.Event(), at_once)
    return code, seen


def told(pid: int, started_earlier: float = 0.0) -> dict[str, Any]:
    """A handle."""
    process = ProcessId.of(pid)
    return asdict(replace(process, started=process.started - started_earlier))


def test_a_job_reports_progress_output_and_exit_code(tmp_path: Path) -> None:
    code = "import sys; print('hello'); open(sys.argv[1], 'a').write('{\"step\": 1}\\n{\"step\": 2}\\n'); sys.exit(3)"
    job = LocalJob(tmp_path / "job", python(code, str(tmp_path / "job" / "progress.jsonl")))
    assert job.start(nothing) is False
    assert wait(job) == (3, [{"step": 1}, {"step": 2}])
    assert job.log.read_text() == "hello\n"


def test_a_job_runs_in_its_own_session_without_our_terminal(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, python("import os, sys; print(os.getsid(0) == os.getpid(), sys.stdin.read() == '')"))
    job.start(nothing)
    assert wait(job)[0] == 0
    assert job.log.read_text() == "True True\n"


def test_the_environment_pins_threads_and_keeps_telemetry_off() -> None:
    env = job_environment(threads=3)
    assert env["OMP_NUM_THREADS"] == "3"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["DO_NOT_TRACK"] == "true"


def test_a_living_job_is_joined_and_never_started_twice(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    slow = "import sys, time; open(sys.argv[1], 'w').write('x'); time.sleep(600)"
    first, second = (
        LocalJob(tmp_path, python(slow, str(ready))),
        LocalJob(tmp_path, python("print('a second trainer')")),
    )
    first.start(nothing)
    assert second.start(nothing) is True
    with pytest.raises(JobCancelled):
        wait(second, Cancel(ready))
    wait(first)
    assert "second" not in first.log.read_text()


def test_after_a_dead_job_another_one_starts(tmp_path: Path) -> None:
    LocalJob(tmp_path, python("")).start(nothing)
    handle = json.loads((tmp_path / "handle.json").read_text())
    psutil.Process(handle["pid"]).wait()
    again = LocalJob(tmp_path, python("print('again')"))
    assert again.start(nothing) is False
    assert wait(again)[0] == 0


def test_a_pid_used_again_by_another_program_is_not_joined(tmp_path: Path) -> None:
    other = psutil.Process()
    (tmp_path / "handle.json").write_text(json.dumps(told(other.pid, started_earlier=100.0)))
    job = LocalJob(tmp_path, python(""))
    assert job.start(nothing) is False
    assert wait(job)[0] == 0


def test_a_process_of_another_host_is_not_joined(tmp_path: Path) -> None:
    (tmp_path / "handle.json").write_text(json.dumps({**told(psutil.Process().pid), "host": "elsewhere"}))
    job = LocalJob(tmp_path, python(""))
    assert job.start(nothing) is False
    assert wait(job)[0] == 0


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1}'])
def test_a_handle_that_can_not_be_read_is_of_no_job(tmp_path: Path, text: str) -> None:
    (tmp_path / "handle.json").write_text(text)
    job = LocalJob(tmp_path, python(""))
    assert job.start(nothing) is False
    assert wait(job)[0] == 0


def test_a_cancelled_job_has_time_to_save_and_what_it_started_hears_nothing(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "helper = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"  # of the job's own group
        "def save(*_):\n"
        "    print(helper.communicate(b'saved with its help')[0].decode(), flush=True)\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "open(sys.argv[1], 'w').write('x')\n"
        "while True: time.sleep(60)"
    )
    ready = tmp_path / "ready"
    job = LocalJob(tmp_path, python(code, str(ready)))
    job.start(nothing)
    with pytest.raises(JobCancelled):
        wait(job, Cancel(ready))
    assert job.log.read_text() == "saved with its help\n"


def test_a_second_word_kills_a_job_that_takes_its_time(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('saving', flush=True))\n"
        "open(sys.argv[1], 'w').write('x')\n"
        "while True: time.sleep(60)"
    )
    ready = tmp_path / "ready"
    job = LocalJob(tmp_path, python(code, str(ready)))
    job.start(nothing)

    class Saving(threading.Event):
        def is_set(self) -> bool:
            return job.log.read_text() == "saving\n"

    with pytest.raises(JobCancelled):
        wait(job, Cancel(ready), Saving())
    assert not psutil.pid_exists(json.loads((tmp_path / "handle.json").read_text())["pid"])


def test_cancelling_kills_a_job_that_ignores_it_and_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.launcher.GRACE_SECONDS", 0.5)
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "deaf = 'import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(flush=True); time.sleep(600)'\n"
        "child = subprocess.Popen([sys.executable, '-c', deaf], stdout=subprocess.PIPE, start_new_session=True)\n"
        "child.stdout.readline()\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    ready = tmp_path / "ready"
    job = LocalJob(tmp_path, python(code, str(ready)))
    job.start(nothing)
    leader = json.loads((tmp_path / "handle.json").read_text())["pid"]
    with pytest.raises(JobCancelled):
        wait(job, Cancel(ready))
    for pid in (leader, int(ready.read_text())):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_failing_listener_leaves_no_job_behind(tmp_path: Path) -> None:
    progress = tmp_path / "progress.jsonl"
    job = LocalJob(
        tmp_path, python("import sys, time; open(sys.argv[1], 'w').write('{}\\n'); time.sleep(600)", str(progress))
    )
    job.start(nothing)

    def fail(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.wait(progress, fail, threading.Event())
    handle = json.loads((tmp_path / "handle.json").read_text())
    assert not psutil.pid_exists(handle["pid"])


def test_tail_waits_for_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    lines = tail(file)
    assert next(lines) is None
    file.write_text('{"a": 1}\n{"b"')
    assert next(lines) == '{"a": 1}'
    assert next(lines) is None
    with file.open("a") as more:
        more.write(": 2}\n")
    assert next(lines) == '{"b": 2}'


def test_half_a_line_of_a_killed_attempt_is_passed_over(tmp_path: Path) -> None:
    progress = tmp_path / "progress.jsonl"
    progress.write_text('{"step": 1}\n{"ste{"step": 2}\n{"step": 3}\n')
    job = LocalJob(tmp_path, python(""))
    job.start(nothing)
    assert wait(job)[1] == [{"step": 1}, {"step": 3}]
