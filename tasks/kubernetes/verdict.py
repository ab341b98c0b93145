"""What is to be made of a job, from what the cluster shows of it. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.kubernetes.manifests import HEAD, WORKER

Object = Mapping[str, Any]

# A pod's reason where no condition tells more: older kubelets, and nodes that shut down.
_TAKEN_AWAY = {
    "Evicted",
    "Preempting",
    "NodeLost",
    "NodeShutdown",
    "Shutdown",
    "Terminated",
    "NodeAffinity",
    "UnexpectedAdmissionError",
}
_COMES_BY_ITSELF = {"ContainerCreating", "PodInitializing"}
NO_POD = "no pod was made for it yet; kubectl describe says why"
BEING_MADE = "its container is being made; a large image takes its time, a missing volume for ever: kubectl describe"
_NO_CHANCE = {"ContainerCannotRun", "StartError"}
_RAY_EXIT_CODE = re.compile(r"failed with exit code (-?\d+)")
_SIGNALS_FROM = 128  # a container that a signal N ended exits with 128 + N
_SIGNALS = frozenset(signal.Signals)
_NOT_SEEN = {"ContainerStatusUnknown", "Unknown"}  # the kubelet's word, and containerd's after a node's restart


@dataclass(frozen=True)
class Running:
    """Or about to: nothing keeps it."""


@dataclass(frozen=True)
class Waiting:
    """It can't begin. `patience` names the setting that says for how long."""

    why: str
    patience: Literal["image", "room"] | None  # None: as long as a queue takes


@dataclass(frozen=True)
class Ending:
    """Pods that are to end are still there; `nodes` has to end them."""

    nodes: str


@dataclass(frozen=True)
class Ended:
    """The exit code (negative: the signal that ended it); None where nobody knows it. `said`: its last words."""

    code: int | None
    said: str = ""


@dataclass(frozen=True)
class TakenAway:
    """The cluster took its node: another try may succeed."""

    why: str


@dataclass(frozen=True)
class Failed:
    """Another try of the same would fail."""

    why: str
    hint: str


Verdict = Running | Waiting | Ending | Ended | TakenAway | Failed


def judge(job: Object | None, pods: Sequence[Object]) -> Verdict:
    """`job` is None where the cluster no longer has it; `pods` are those that bear its label."""
    if job is not None and job.get("kind") == "RayJob":
        return _of_ray_job(job, pods)
    living = [pod for pod in pods if alive(pod)]
    if job is None and not living and any(_of_ray(pod) for pod in pods):
        return Ended(None)  # what a worker says of its end isn't the job's
    if living:
        return _ending(living) if job is None or _deleted(job) or any(map(_deleted, living)) else _of_living(living)
    for pod in pods:
        if (verdict := _of_dead(pod)) is not None:
            return verdict
    if job is None or _deleted(job):
        return Ended(None)
    for condition in _true(job):
        if condition["type"] in ("Failed", "Complete"):
            return _of_condition(condition)
    if job["spec"].get("suspend"):
        return Waiting("it is held in a queue", None)
    return Waiting(NO_POD, "room")


def alive(pod: Object) -> bool:
    """Whether something of it may run."""
    return _phase(pod) not in ("Succeeded", "Failed")


def _of_ray_job(job: Object, pods: Sequence[Object]) -> Verdict:
    status = job.get("status") or {}
    heads = [pod for pod in pods if _has(pod, HEAD)]
    for head in heads:  # whatever KubeRay makes of it, the work that ran there is gone
        if why := _taken_away(head):
            return TakenAway(why)
    living = [pod for pod in pods if alive(pod)]
    if _deleted(job):
        return _ending(living) if living else Ended(None)
    match status.get("jobDeploymentStatus"):
        case "Complete" | "Failed":
            return _of_ray_status(status, heads)
        case "Suspended":
            return Waiting("it is held in a queue", None)
        case "ValidationFailed":
            return Failed(f"KubeRay refuses the job: {status.get('message', '')}", "execution.kubernetes")
    if status.get("jobDeploymentStatus") == "Running" and not any(map(alive, heads)):
        return _ending(heads) if heads else TakenAway("its Ray head is gone")  # of one that ended, KubeRay tells soon
    return _of_living(living) if living else Waiting(NO_POD, "room")


def _of_ray_status(status: Object, heads: Iterable[Object]) -> Verdict:
    message = str(status.get("message", ""))
    for head in heads:
        verdict = _of_dead(head)
        if isinstance(verdict, Failed):
            return verdict
    match status.get("jobStatus"), status.get("reason"):
        case "SUCCEEDED", _:
            return Ended(0)
        case _, "DeadlineExceeded":
            return Failed("it ran past its deadline", "activeDeadlineSeconds of the RayJob")
        case _, "SubmissionFailed" | "JobDeploymentStatusTransitionGracePeriodExceeded" as reason:
            return TakenAway(f"its Ray cluster didn't take or keep the job: {reason} {message}".strip())
    told = _RAY_EXIT_CODE.search(message)
    return Ended(int(told[1]) if told else 1, message.strip())


def _of_living(pods: Sequence[Object]) -> Verdict:
    return next((verdict for verdict in map(_waiting, pods) if verdict is not None), Running())


def _waiting(pod: Object) -> Waiting | None:
    for condition in _conditions(pod):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Waiting(_line("no node has room", condition.get("message")), "room")
    for container in _containers(pod):
        waits = (container.get("state") or {}).get("waiting") or {}
        if waits.get("reason") in _COMES_BY_ITSELF:
            return Waiting(BEING_MADE, None)
        if waits.get("reason"):
            return Waiting(_line(waits["reason"], waits.get("message")), "image")
    return None


def _of_dead(pod: Object) -> Verdict | None:
    """None where it says nothing of its end."""
    if _phase(pod) == "Succeeded":
        return Ended(0)
    if why := _taken_away(pod):
        return TakenAway(why)
    for container in _containers(pod):
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            return Failed(
                "the kernel killed it, for it took more memory than its pod may (OOMKilled)",
                "execution.kubernetes: memory of cpu_node or gpu_node; or fewer tokens at once",
            )
        if ended.get("reason") in _NO_CHANCE:
            return Failed(_line(f"its container can't run: {ended['reason']}", ended.get("message")), "image")
        if ended.get("reason") in _NOT_SEEN:
            return TakenAway(_line("its node lost sight of it", ended.get("message")))
        if (code := ended.get("exitCode")) is not None:
            by_signal = code - _SIGNALS_FROM in _SIGNALS
            return Ended(_SIGNALS_FROM - code if by_signal else code, str(ended.get("message") or "").strip())
    if (pod.get("status") or {}).get("reason") == "DeadlineExceeded":
        return _OVERDUE
    return None


_OVERDUE = Failed("it ran past its deadline", "activeDeadlineSeconds of the Job")


def _of_condition(condition: Object) -> Verdict:
    match condition.get("reason"):
        case "DeadlineExceeded":
            return _OVERDUE
        case "PodFailurePolicy":  # ours has the one rule
            return TakenAway(_line("its pod was taken away", condition.get("message")))
    return Ended(0 if condition["type"] == "Complete" else None)


def _taken_away(pod: Object) -> str:
    """Why the cluster ended this pod, if it did."""
    status = pod.get("status") or {}
    for condition in _true(pod):
        if condition["type"] == "DisruptionTarget" and _phase(pod) != "Succeeded":
            return _line(f"its pod was taken away ({condition.get('reason')})", condition.get("message"))
    if _phase(pod) == "Failed" and status.get("reason") in _TAKEN_AWAY:
        return _line(f"its pod was taken away ({status['reason']})", status.get("message"))
    return ""


def _ending(pods: Sequence[Object]) -> Ending:
    return Ending(", ".join(sorted({str(pod["spec"].get("nodeName") or "no node") for pod in pods})))


def _of_ray(pod: Object) -> bool:
    return _has(pod, HEAD) or _has(pod, WORKER)


def _has(pod: Object, container: str) -> bool:
    return any(each["name"] == container for each in pod["spec"]["containers"])


def _deleted(thing: Object) -> bool:
    return "deletionTimestamp" in thing["metadata"]


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _conditions(thing: Object) -> list[Object]:
    return (thing.get("status") or {}).get("conditions") or []


def _true(thing: Object) -> Iterator[Object]:
    return (condition for condition in _conditions(thing) if condition["status"] == "True")


def _containers(pod: Object) -> list[Object]:
    return (pod.get("status") or {}).get("containerStatuses") or []


def _line(what: str, message: str | None) -> str:
    return ": ".join([what, *(" ".join(message.split()) for message in [message] if message)])
