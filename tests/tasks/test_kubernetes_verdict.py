"""What is made of what the cluster shows."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.kubernetes.verdict import BEING_MADE, Ended, Ending, Failed, Running, TakenAway, Verdict, Waiting, judge


def job(**status: Any) -> dict[str, Any]:
    return {"kind": "Job", "metadata": {"name": "j"}, "spec": {}, "status": status}


def ray(**status: Any) -> dict[str, Any]:
    return {"kind": "RayJob", "metadata": {"name": "j"}, "spec": {}, "status": status}


def pod(phase: str, name: str = "job", deleted: bool = False, **status: Any) -> dict[str, Any]:
    meta = {"name": "p", **({"deletionTimestamp": "now"} if deleted else {})}
    return {
        "metadata": meta,
        "spec": {"containers": [{"name": name}], "nodeName": "n1"},
        "status": {"phase": phase, **status},
    }


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}]}


def waiting(reason: str) -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason}}}]}


def is_true(kind: str, reason: str = "", message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": message}]}


DISRUPTED = is_true("DisruptionTarget", "PreemptionByScheduler", "preempting to\n accommodate")


LOST_WORKER = pod("Failed", "ray-worker", **DISRUPTED)  # the job itself says that a rank is lost


@pytest.mark.parametrize(
    ("thing", "pods", "verdict"),
    [
        (None, [], Ended(None)),
        (job(), [pod("Running")], Running()),
        (job(), [pod("Pending")], Running()),
        (job(), [pod("Pending", **waiting("ContainerCreating"))], Waiting(BEING_MADE, None)),
        (job(), [pod("Pending", **waiting("ImagePullBackOff"))], Waiting("ImagePullBackOff", "image")),
        (job(), [pod("Succeeded")], Ended(0)),
        (job(), [pod("Failed", **ended(3, message=" no log "))], Ended(3, "no log")),
        (job(), [pod("Failed", **ended(137))], Ended(-9)),
        (job(), [pod("Failed", **ended(143))], Ended(-15)),
        (job(), [pod("Failed", **ended(200))], Ended(200)),  # 72 is no signal
        (job(), [pod("Failed", **ended(255))], Ended(255)),
        (job(), [pod("Failed", **ended(255, "Unknown"))], TakenAway),
        (job(), [pod("Failed", **ended(137, "ContainerStatusUnknown"))], TakenAway),
        (None, [pod("Succeeded", "ray-worker")], Ended(None)),  # somebody deleted the RayJob
        (job(), [pod("Failed", **ended(143), **DISRUPTED)], TakenAway),
        (job(), [pod("Failed", **ended(137), **DISRUPTED)], TakenAway),
        (job(), [pod("Succeeded", **DISRUPTED)], Ended(0)),
        (job(), [pod("Failed", reason="Evicted", message="low on memory")], TakenAway),
        (job(), [pod("Failed", reason="Preempting")], TakenAway),
        (job(), [pod("Failed", **ended(137, "OOMKilled"))], Failed),
        (job(), [pod("Failed", **ended(128, "StartError", "no such file"))], Failed),
        (job(), [pod("Failed", reason="DeadlineExceeded")], Failed),
        (job(), [pod("Running", deleted=True, **DISRUPTED)], Ending("n1")),
        (None, [pod("Running")], Ending("n1")),
        (job(**is_true("Failed", "PodFailurePolicy", "DisruptionTarget")), [], TakenAway),
        (job(**is_true("Failed", "BackoffLimitExceeded")), [], Ended(None)),
        (job(**is_true("Failed", "DeadlineExceeded")), [], Failed),
        (job(**is_true("Complete")), [], Ended(0)),
        (job(), [], Waiting),
        (ray(), [], Waiting),
        (ray(jobDeploymentStatus="Initializing"), [pod("Pending", "ray-head")], Running()),
        (ray(jobDeploymentStatus="Running"), [pod("Running", "ray-head")], Running()),
        (ray(jobDeploymentStatus="Running"), [pod("Running", "ray-worker")], TakenAway),
        (ray(jobDeploymentStatus="Running"), [pod("Succeeded", "ray-head")], Ending("n1")),
        (ray(jobDeploymentStatus="Running"), [pod("Running", "ray-head", **DISRUPTED)], TakenAway),
        (
            ray(jobDeploymentStatus="Running"),
            [pod("Running", "ray-head"), pod("Failed", "ray-worker", **DISRUPTED)],
            Running(),
        ),
        (ray(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED"), [pod("Running", "ray-head")], Ended(0)),
        (ray(jobDeploymentStatus="Failed", jobStatus="FAILED", reason="AppFailed"), [], Ended(1)),
        (ray(jobDeploymentStatus="Failed", reason="SubmissionFailed"), [], TakenAway),
        (ray(jobDeploymentStatus="Failed", reason="DeadlineExceeded"), [], Failed),
        (ray(jobDeploymentStatus="Failed"), [pod("Failed", "ray-head", **ended(137, "OOMKilled"))], Failed),
        (ray(jobDeploymentStatus="ValidationFailed", message="no"), [], Failed),
    ],
)
def test_each_end_is_told_apart(thing: Any, pods: list[Any], verdict: Verdict | type[Verdict]) -> None:
    told = judge(thing, pods)
    assert isinstance(told, verdict) if isinstance(verdict, type) else told == verdict


def test_the_clusters_words_are_told_in_one_line() -> None:
    told = judge(job(), [pod("Failed", **DISRUPTED)])
    assert told == TakenAway("its pod was taken away (PreemptionByScheduler): preempting to accommodate")


def test_rays_message_has_the_exit_code() -> None:
    message = "Job entrypoint command failed with exit code -9, last available logs:"
    told = judge(ray(jobDeploymentStatus="Failed", jobStatus="FAILED", reason="AppFailed", message=message), [])
    assert told == Ended(-9, message)


def test_a_job_that_a_queue_holds_may_wait_for_ever() -> None:
    held = {**job(), "spec": {"suspend": True}}
    assert judge(held, []) == Waiting("it is held in a queue", None)
    assert judge(ray(jobDeploymentStatus="Suspended"), []) == Waiting("it is held in a queue", None)
