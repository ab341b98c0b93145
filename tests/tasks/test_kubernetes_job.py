"""Jobs in a cluster: a real API server process, whose pods are real processes."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rufus_core.errors import ConfigError, InfrastructureError, JobFailed, JobLost, JobNotStarted

pytest.importorskip("kubernetes", reason="the client of Kubernetes isn't installed: rufus-air[kubernetes]")

from tasks.jobs import JobCancelled
from tasks.kubernetes.cluster import Cluster
from tasks.kubernetes.job import KubernetesJob
from tasks.kubernetes.manifests import manifest
from tests.support.kubernetes import TestCluster, running_cluster

KINDS = pytest.mark.parametrize("kind", ["job", "rayjob"])
SAVES = (
    "import signal, sys, time, pathlib\n"
    "def save(*_):\n"
    "    print('saved', flush=True)\n"
    "    sys.exit(143)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "pathlib.Path(sys.argv[1]).open('a').write('{\"step\": 1}\\n')\n"
    "while True: time.sleep(60)"
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with running_cluster(tmp_path / "cluster") as one:
        yield one


def job(cluster: TestCluster, code: str, kind: str = "job", nodes: int = 1, **changes: Any) -> KubernetesJob:
    """One that runs this Python, with the path of its progress as argument."""
    home = cluster.folder.parent / "home"
    folder = home / "jobs" / "stages.math.train.0123456789ab"
    settings = cluster.settings(home, kind=kind, **changes)
    command = ["python", "-c", code, str(folder / "progress.jsonl")]
    make = partial(manifest, settings, folder=folder, command=command, variables={}, nodes=nodes, gpus_per_node=0)
    return KubernetesJob(folder, settings, Cluster(settings), make)


class When(threading.Event):
    """Is set as soon as `seen` is true, and does something once then."""

    def __init__(self, seen: Callable[[], bool], then: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._seen, self._then, self._done = seen, then, False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._done and self._seen():
            self._done = True
            if self._then is None:
                self.set()
            else:
                self._then()
        return super().wait(timeout)


def wait(
    one: KubernetesJob, cancelled: threading.Event | None = None, at_once: threading.Event | None = None
) -> tuple[int | None, list[Any]]:
    seen: list[Any] = []
    code = one.wait(one.folder / "progress.jsonl", seen.append, cancelled or threading.Event(), at_once)
    return code, seen


def progress(one: KubernetesJob) -> Callable[[], bool]:
    return lambda: (one.folder / "progress.jsonl").exists()


def evict(cluster: TestCluster) -> None:
    import httpx

    from tests.support.kubernetes_api import TOKEN

    pod = next(p for p in cluster.objects("pods") if p["command"] is not None)["metadata"]
    url = f"http://127.0.0.1:{cluster.port}/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}/eviction"
    httpx.post(url, json={}, headers={"Authorization": f"Bearer {TOKEN}"}).raise_for_status()


@KINDS
def test_a_job_reports_progress_output_and_exit_code(cluster: TestCluster, kind: str) -> None:
    code = "import sys; print('hello'); open(sys.argv[1], 'a').write('{\"step\": 1}\\n{\"step\": 2}\\n'); sys.exit(3)"
    one = job(cluster, code, kind)
    prepared: list[bool] = []
    assert one.start(lambda: prepared.append(True)) is False
    assert wait(one) == (3, [{"step": 1}, {"step": 2}])
    assert prepared == [True]
    assert one.log.read_text().splitlines()[0] == "hello"
    assert len(cluster.created()) == 1


@KINDS
def test_a_living_job_is_joined_and_never_made_twice(cluster: TestCluster, kind: str) -> None:
    first, second = job(cluster, SAVES, kind), job(cluster, "print('a second trainer')", kind)
    first.start(lambda: None)
    assert second.start(lambda: pytest.fail("it is prepared already")) is True
    with pytest.raises(JobCancelled):
        wait(second, When(progress(first)))
    assert first.log.read_text() == "saved\n"
    assert len(cluster.created()) == 1
    assert cluster.objects("pods") == cluster.processes() == []


@KINDS
def test_after_a_job_that_ended_the_next_attempt_starts(cluster: TestCluster, kind: str) -> None:
    one = job(cluster, "import sys; sys.exit(1)", kind)
    one.start(lambda: None)
    assert wait(one)[0] == 1
    again = job(cluster, "", kind)
    assert again.start(lambda: None) is False
    assert wait(again)[0] == 0
    first, second = cluster.created()
    assert (first[:-1], first[-1], second[-1]) == (second[:-1], "1", "2")


@KINDS
def test_a_pod_that_is_evicted_is_no_failure_of_the_job(cluster: TestCluster, kind: str) -> None:
    one = job(cluster, SAVES, kind, nodes=2 if kind == "rayjob" else 1)
    one.start(lambda: None)
    with pytest.raises(JobLost, match=r"EvictionByEvictionAPI|DisruptionTarget|Ray head is gone"):
        wait(one, When(progress(one), lambda: evict(cluster)))
    assert one.log.read_text() == "saved\n"
    assert cluster.processes() == []
    assert job(cluster, SAVES, kind).start(lambda: None) is False
    assert len(cluster.created()) == 2


def test_a_killed_process_is_told_as_killed(cluster: TestCluster) -> None:
    one = job(cluster, SAVES)
    one.start(lambda: None)
    kill = partial(lambda: os.killpg(cluster.processes()[0], signal.SIGKILL))
    assert wait(one, When(progress(one), kill))[0] == -signal.SIGKILL


def test_memory_that_ran_out_is_told_as_what_it_is_and_not_tried_again(cluster: TestCluster) -> None:
    cluster.turn("out-of-memory")
    one = job(cluster, "")
    one.start(lambda: None)
    with pytest.raises(JobFailed, match=r"OOMKilled.*memory of cpu_node") as told:
        wait(one)
    assert not isinstance(told.value, JobLost)


@KINDS
@pytest.mark.parametrize(
    ("knob", "why"), [("image", "ImagePullBackOff: no such tag"), ("unschedulable", "no node has room: no such tag")]
)
def test_what_keeps_a_job_from_starting_is_told_and_then_given_up(
    cluster: TestCluster, kind: str, knob: str, why: str
) -> None:
    cluster.turn(knob, "no such tag")
    one = job(cluster, "", kind, image_patience_seconds=2, room_patience_seconds=2)
    one.start(lambda: None)
    warned: list[Any] = []
    with pytest.raises(JobNotStarted, match=why):
        one.wait(one.folder / "progress.jsonl", warned.append, threading.Event())
    assert warned == [{"warning": f"it waits in the cluster: {why}"}]
    assert cluster.objects("jobs") == cluster.objects("rayjobs") == cluster.objects("pods") == []


def test_a_job_that_gets_room_in_time_runs(cluster: TestCluster) -> None:
    cluster.turn("unschedulable", "0/8 nodes are available")
    one = job(cluster, "")
    one.start(lambda: None)
    warned: list[Any] = []

    def hear(line: Any) -> None:
        warned.append(line)
        cluster.turn("unschedulable", None)

    assert one.wait(one.folder / "progress.jsonl", hear, threading.Event()) == 0
    assert warned == [{"warning": "it waits in the cluster: no node has room: 0/8 nodes are available"}]


@KINDS
def test_a_job_goes_on_while_the_api_server_is_away(cluster: TestCluster, kind: str) -> None:
    one = job(
        cluster, "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)", kind
    )
    one.start(lambda: None)
    warned: list[Any] = []

    def hear(line: Any) -> None:
        warned.append(line)
        if "warning" in line and "doesn't answer" in line["warning"] and len(warned) == 1:
            (one.folder / "progress.jsonl").write_text('{"step": 1}\n')  # the job ends while nobody can say so
            cluster.start()

    assert one.wait(one.folder / "progress.jsonl", hear, When(lambda: bool(cluster.processes()), cluster.kill)) == 0
    assert len(cluster.created()) == 1
    assert {"step": 1} in warned


def test_changes_that_the_server_forgot_are_listed_anew(cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks but when the bell rings, and `compact` ends every watch with 410 Gone."""
    monkeypatch.setattr("tasks.kubernetes.patience.LOOK_SECONDS", 3600.0)
    one = job(cluster, SAVES)
    one.start(lambda: None)

    def forget_and_kill() -> None:
        cluster.turn("compact")
        os.killpg(cluster.processes()[0], signal.SIGKILL)

    assert wait(one, When(progress(one), forget_and_kill))[0] == -signal.SIGKILL


def test_a_lost_answer_to_a_creation_makes_no_second_job(cluster: TestCluster) -> None:
    cluster.turn("cut-create")
    one = job(cluster, SAVES)
    with pytest.raises(JobLost, match="doesn't answer"):
        one.start(lambda: None)
    cluster.gone()
    cluster.start()
    again = job(cluster, "print('a second trainer')")
    assert again.start(lambda: None) is True
    with pytest.raises(JobCancelled):
        wait(again, When(progress(one)))
    assert len(cluster.created()) == 1
    assert one.log.read_text() == "saved\n"


@KINDS
def test_a_second_word_kills_a_job_that_takes_its_time(cluster: TestCluster, kind: str) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('saving', flush=True))\n"
        "open(sys.argv[1], 'w').write('{}\\n')\n"
        "while True: time.sleep(60)"
    )
    one = job(cluster, code, kind, grace_seconds=3600)
    one.start(lambda: None)

    class Saving(threading.Event):
        def is_set(self) -> bool:
            return one.log.read_text() == "saving\n"

    with pytest.raises(JobCancelled):
        wait(one, When(progress(one)), Saving())
    assert cluster.processes() == []


def test_a_cancelled_job_that_nobody_can_confirm_is_said_so(cluster: TestCluster) -> None:
    one = job(cluster, SAVES, grace_seconds=1, node_patience_seconds=1)
    one.start(lambda: None)

    def unreachable() -> bool:
        if progress(one)():
            cluster.kill()
            return True
        return False

    with pytest.raises(InfrastructureError, match=r"nobody can say that the job .* is gone"):
        wait(one, When(unreachable))
    cluster.start()
    assert one.start(lambda: None) is True


def test_a_node_that_does_not_end_a_pod_is_given_up(cluster: TestCluster) -> None:
    cluster.turn("node-lost")
    one = job(cluster, SAVES, grace_seconds=1, node_patience_seconds=1)
    one.start(lambda: None)
    with pytest.raises(JobLost, match=r"doesn't end on node-1"):
        wait(one, When(progress(one), lambda: evict(cluster)))
    assert one.start(lambda: None) is False


@pytest.mark.parametrize("change", [{"namespace": "elsewhere"}, {"kind": "rayjob"}])
def test_a_living_job_is_found_where_it_was_created_whatever_the_settings_say_by_now(
    cluster: TestCluster, change: dict[str, str]
) -> None:
    first, second = job(cluster, SAVES), job(cluster, SAVES, **change)
    assert first.start(lambda: None) is False
    assert second.lives()
    assert second.start(lambda: None) is True
    with pytest.raises(JobCancelled):
        wait(second, When(progress(second)))
    assert second.log.read_text() == "saved\n"
    assert len(cluster.created()) == 1
    assert cluster.processes() == []
    assert not second.lives()


def test_a_quota_that_met_another_change_is_asked_again(cluster: TestCluster) -> None:
    one = job(cluster, "")
    cluster.turn("conflict")
    with pytest.raises(JobLost, match="Operation cannot be fulfilled"):
        one.start(lambda: None)
    cluster.turn("conflict", None)
    assert one.start(lambda: None) is False
    assert wait(one)[0] == 0
    assert len(cluster.created()) == 1


def test_what_was_never_answered_is_followed_where_the_settings_say_now(cluster: TestCluster) -> None:
    first, second = job(cluster, ""), job(cluster, "", kind="rayjob")
    cluster.turn("conflict")
    with pytest.raises(JobLost):
        first.start(lambda: None)
    cluster.turn("conflict", None)
    assert second.start(lambda: None) is False
    assert wait(second)[0] == 0
    assert len(cluster.objects("jobs")) == 0


def test_a_job_that_somebody_deleted_is_gone_without_an_exit_code(cluster: TestCluster) -> None:
    one = job(cluster, SAVES)
    one.start(lambda: None)
    name = cluster.created()[0]
    assert wait(one, When(progress(one), lambda: one._cluster.delete(name)))[0] is None
    assert one.log.read_text() == "saved\n"


def test_a_refusal_is_told_with_what_to_do(cluster: TestCluster) -> None:
    cluster.turn("forbidden", "POST")
    with pytest.raises(ConfigError, match=r"refuses to create: User .*infra/kubernetes"):
        job(cluster, "").start(lambda: None)


def test_only_a_job_that_lives_is_said_to_live(cluster: TestCluster) -> None:
    one = job(cluster, SAVES)
    assert not one.lives()
    one.start(lambda: None)
    assert one.lives()
    cluster.kill()
    assert one.lives()  # nobody can be asked
    cluster.start()
    one.cancel(threading.Event())
    assert not one.lives()


def test_a_file_of_attempts_that_can_not_be_read_starts_nothing(cluster: TestCluster) -> None:
    one = job(cluster, "")
    one.folder.mkdir(parents=True)
    (one.folder / "kubernetes.json").write_text(json.dumps({"number": "many"}))
    with pytest.raises(Exception, match="can't read which attempt is the last"):
        one.start(lambda: None)
    assert cluster.created() == []
